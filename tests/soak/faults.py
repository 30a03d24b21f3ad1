"""What may go wrong in a soak: kinds of faults, and those of each round, drawn from a seed alone.

A round is a few faults that overlap, all of which heal; the soak then waits until every site has applied another outer
step. So each stall has a beginning, and round k of a seed is the same whatever came before it.
"""
import dataclasses
import math
import random

# What a kind needs of the machine (injector.py), what it does, and its longest time in seconds (0: it heals by itself).
KINDS = {
    "kill_gateway": ((), "the gateway of {site} is killed", 0),
    "kill_rank": ((), "a rank of {site} is killed", 0),
    "crash": ((), "all of {site} is killed, and launched again {length} later", 15),
    "leave": ((), "{site} is asked to stop, and launched again {length} later", 15),
    "stop_gateway": ((), "the gateway of {site} stands still for {length}", 20),
    "stop_rank": ((), "a rank of {site} stands still for {length}", 20),
    "stop_site": ((), "all of {site} stands still for {length}", 20),
    "clock_jump": (("clock",), "the calendar of {site} is {factor:+.0f} s off for {length}", 20),
    "disk_full": (("disk",), "the disk of {site} is full for {length}", 15),
    "partition": (("network",), "{site} and {other} are cut off from each other for {length}", 25),
    "one_way": (("network",), "nothing from {site} reaches {other} for {length}", 25),
    "isolate": (("network",), "{site} is cut off from all for {length}", 25),
    "slow_line": (("network",), "the line of {site} has a {factor:.0f}th of its rate for {length}", 20),
    "loss": (("network",), "{factor:.0f} % of what {site} sends and gets is lost, in runs, for {length}", 20),
    "corrupt": (("network",), "{factor:.1f} % of what {site} sends and gets is damaged unseen by TCP, for {length}", 10),
}
# Of one group a site, or the network, suffers one at a time: healing it must not heal another.
GROUPS = {"kill_gateway": "process", "kill_rank": "process", "crash": "process", "leave": "process",
          "stop_gateway": "process", "stop_rank": "process", "stop_site": "process", "partition": "cut",
          "one_way": "cut"}
ENDS_GATEWAY = ("kill_gateway", "crash", "leave")
# From this round on the first site's gateway lives: what leaks shows only in a long life.
SPARED_FROM = 8
FAULTS_MAX = 3


@dataclasses.dataclass(frozen=True)
class Fault:
    kind: str
    at: float  # seconds after the round's begin
    length: float  # until it heals
    site: int  # its place, from 0
    other: int
    factor: float = 0.0  # slow_line: how many times; loss, corrupt: percent; clock_jump: seconds

    def text(self, names):
        return KINDS[self.kind][1].format(site=names[self.site], other=names[self.other], factor=self.factor,
                                          length=f"{self.length:.1f} s")


def possible(means):
    """The kinds of faults for which the machine has the means."""
    return [kind for kind, (needs, _, _) in KINDS.items() if set(needs) <= set(means)]


def left_out(why):
    """The other kinds, each with the reason; `why`: by the means that are not there."""
    return {kind: why[need] for kind, (needs, _, _) in KINDS.items() for need in needs if need in why}


def log_uniform(draw, low, high):
    return low * math.exp(draw.random() * math.log(high / low))


def factor_of(draw, kind):
    if kind == "slow_line":
        return log_uniform(draw, 5, 100)
    if kind == "loss":
        return log_uniform(draw, 1, 30)
    if kind == "corrupt":
        return log_uniform(draw, 0.1, 2)
    if kind == "clock_jump":
        return draw.choice((-1, 1)) * log_uniform(draw, 1, 3600)
    return 0.0


def draw_round(seed, number, sites, kinds):
    """The faults of one round, in the order of time."""
    draw = random.Random(f"{seed}/{number}")
    faults, taken = [], set()
    for _ in range(draw.randint(1, FAULTS_MAX)):
        kind = draw.choice(kinds)
        first = 1 if number >= SPARED_FROM and kind in ENDS_GATEWAY else 0
        site = draw.randrange(first, sites)
        other = draw.choice([i for i in range(sites) if i != site])
        at, longest = draw.uniform(0, 5), KINDS[kind][2]
        length = log_uniform(draw, 0.3, longest) if longest else 0.0
        factor = factor_of(draw, kind)
        place = (GROUPS.get(kind, kind), None if kind in ("partition", "one_way") else site)
        if place not in taken:
            taken.add(place)
            faults.append(Fault(kind, at, length, site, other, factor))
    return sorted(faults, key=lambda f: f.at)
