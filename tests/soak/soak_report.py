"""What a soak came to, for people and as JSON."""
import dataclasses
import json
import statistics


@dataclasses.dataclass
class Stall:
    """From the last repair of a round to another outer step at every site."""
    seconds: float
    round: int


@dataclasses.dataclass
class Report:
    seed: int
    minutes: float  # that were asked for
    sites: int
    network: str  # "emulated", "loopback"
    version: str = ""
    seconds: float = 0  # that it took, with its beginning and end
    outer_steps: int = 0
    rounds: int = 0
    faults: dict = dataclasses.field(default_factory=dict)  # by kind
    left_out: dict = dataclasses.field(default_factory=dict)  # by kind: why
    stalls: list = dataclasses.field(default_factory=list)
    bytes_resent: dict = dataclasses.field(default_factory=dict)  # by site, about
    rss_peak_mib: dict = dataclasses.field(default_factory=dict)  # by role
    descriptors_peak: dict = dataclasses.field(default_factory=dict)
    not_seen: list = dataclasses.field(default_factory=list)  # that a reader may take for checked
    restarts: int = 0  # of processes, by launch
    alarms: dict = dataclasses.field(default_factory=dict)  # by event
    named: dict = dataclasses.field(default_factory=dict)  # by site: outer steps with a contribution of it
    tokens: dict = dataclasses.field(default_factory=dict)  # by site: trained, lost, open
    stopped: bool = False  # before its time, on request
    violations: list = dataclasses.field(default_factory=list)
    broken_off: list = dataclasses.field(default_factory=list)  # by what: then not everything was checked
    first_round: int = 0
    timeline: list = dataclasses.field(default_factory=list)  # what was done when, in local time

    def command(self):
        return (f"tools/soak --seed {self.seed} --minutes {self.minutes:g} --sites {self.sites}"
                + (" --loopback" if self.network == "loopback" else "")
                + (f" --first-round {self.first_round}" if self.first_round else ""))

    def json(self):
        return json.dumps({**dataclasses.asdict(self), "command": self.command()}, indent=2)

    def text(self):
        def counts(values):
            return ", ".join(f"{name} {value}" for name, value in values.items()) or "none"
        def counted(number, what):
            return f"{number} {what}{'' if number == 1 else 's'}"
        waits = [stall.seconds for stall in self.stalls]
        longest = max(self.stalls, key=lambda stall: stall.seconds, default=None)
        lines = [
            f"{self.sites} sites, {self.network} network, seed {self.seed}, {self.version}",
            f"{self.seconds / 60:.1f} minutes{', stopped on request' if self.stopped else ''}: {self.outer_steps} outer steps, "
            f"{counted(self.rounds, 'round')}, {counted(sum(self.faults.values()), 'fault')}, "
            f"{counted(self.restarts, 'restart')} of processes",
            f"faults: {counts(self.faults)}"]
        for why in dict.fromkeys(self.left_out.values()):
            lines.append(f"left out, {why}: {', '.join(kind for kind in self.left_out if self.left_out[kind] == why)}")
        if longest:
            lines.append(f"from the last repair of a round to a step at every site: longest {longest.seconds:.1f} s (round "
                         f"{longest.round}), median {statistics.median(waits):.1f} s")
        lines += [f"resent, about: {counts({s: f'{b / 1e6:.1f} MB' for s, b in self.bytes_resent.items()})}",
                  f"memory, most: {counts({r: f'{m:.0f} MiB' for r, m in self.rss_peak_mib.items()})}",
                  f"descriptors, most: {counts(self.descriptors_peak)}",
                  *(f"not seen: {what}" for what in self.not_seen),
                  f"outer steps with a contribution of: {counts(self.named)}",
                  "tokens: " + "; ".join(f"{s}: {counts(t)}" for s, t in self.tokens.items()),
                  f"alarms, all explained by faults unless named below: {counts(self.alarms)}"]
        lines += [f"BROKEN OFF, so that not everything was checked:\n{why}" for why in self.broken_off]
        if self.violations:
            lines += [f"{len(self.violations)} VIOLATION{'S' if len(self.violations) > 1 else ''}", *(f"  {v}" for v in self.violations), f"again: {self.command()}"]
        elif not self.broken_off:
            lines.append("every invariant holds")
        return "\n".join(lines)
