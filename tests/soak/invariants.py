"""What must always hold (inter/PROTOCOL.md), checked on what sites left behind and on what was seen of their processes.

Each check takes plain data and gives sentences, one for each violation; invariants_test.py plants violations in that
data. What the sites' files say is read independently of our C++ (tests/e2e/outer_files.py).
"""
import collections
import dataclasses
import re
import statistics

import outer_files

# Alarms, and the faults that explain them: of the same site, or of any, since a line has two ends. What is not named here
# nothing explains.
EXPLAINED_BY_OWN = {name: "disk_full" for name in ("disk_failed", "checkpoint_failed", "contribution_failed",
                                                   "state_not_saved", "gateway_failed", "training_failed")}
EXPLAINED_BY_ANY = {"wire_violation": "corrupt"}
RSS_GROWTH_MIB = 64  # beyond what a process held at the beginning, whatever came
RSS_GROWTH = 1.5
LEAK_MIB, LEAK_DESCRIPTORS = 16, 8  # of one long life, from its first half to its last quarter
DESCRIPTORS_GROWTH = 64
LONG_LIFE_LOOKS = 120


@dataclasses.dataclass
class SiteFacts:
    name: str
    number: int  # its id in records
    genesis: bytes
    records: list  # as outer_files reads them
    state_step: int
    state_root: bytes  # recomputed from the values
    events: list = dataclasses.field(default_factory=list)  # warnings and alarms
    faults: set = dataclasses.field(default_factory=set)  # kinds that the site suffered
    kills: int = 0
    lives: list = dataclasses.field(default_factory=list)
    ends: list = dataclasses.field(default_factory=list)  # of launch, that nobody asked for: sentences
    tokens_trained: int = 0
    tokens_lost: int = 0
    tokens_open: int = 0  # at most: trained since the last contribution that a record names
    tokens_unwritten: int = 0  # at most: trained, and no line tells of them


def read_site(site, number):
    """What the files of a site say."""
    reader = outer_files.Site(site.run_dir)
    newest = reader.states()[0]  # which recomputes the root
    return SiteFacts(site.name, number, reader.genesis["hash"], reader.records(), newest.step, newest.claimed_root)


def one_history(sites, finished=True):
    """All sites have the same records, each named by the next."""
    found, known = [], {}
    for site in sites:
        parent = site.genesis
        for place, record in enumerate(site.records, 1):
            if record["step"] != place:
                found.append(f"{site.name}: record {place} is of step {record['step']}")
            if record["parent"] != parent or record["run"] != site.genesis:
                found.append(f"{site.name}: record {place} does not follow the one before it")
            parent = record["hash"]
            other, known_hash = known.setdefault(place, (site.name, record["hash"]))
            if record["hash"] != known_hash:
                found.append(f"step {place}: {site.name} has another record than {other}")
        if finished and not (site.records and site.records[-1]["final"]):
            found.append(f"{site.name}: its last record, of step {len(site.records)}, is not final")
    if finished and len({len(site.records) for site in sites}) > 1:
        found.append("sites end at different steps: " + ", ".join(f"{s.name} at {len(s.records)}" for s in sites))
    return found


def equal_roots(sites):
    """Of each step: what a site has computed, what its records say of the step before, what it ended with."""
    found, roots = [], collections.defaultdict(dict)
    for site in sites:
        for record in site.records:
            roots[record["step"] - 1].setdefault(record["parent_root"], f"{site.name}'s record {record['step']}")
        for event in site.events:
            if event["event"] == "step_applied":
                roots[event["outer_step"]].setdefault(bytes.fromhex(event["root"]), site.name)
        roots[site.state_step].setdefault(site.state_root, f"{site.name}'s state")
    for step, seen in sorted(roots.items()):
        if len(seen) > 1:
            found.append(f"step {step}: {len(seen)} different roots, of {', '.join(seen.values())}")
    return found


def decided_by_majorities(sites):
    found = []
    for site in sites:
        for record in site.records:
            accepts, voters = record["accepts"], record["view"]["voters"]
            if len(set(accepts)) != len(accepts) or not set(accepts) <= set(voters):
                found.append(f"{site.name}: step {record['step']}: accepted by {accepts} of the voters {voters}")
            elif 2 * len(accepts) <= len(voters):
                found.append(f"{site.name}: step {record['step']}: {len(accepts)} of {len(voters)} are no majority")
    return found


def contributions_counted_once(sites):
    found = []
    for site in sites:
        named = {}
        for record in site.records:
            numbers = [part["site"] for part in record["parts"]]
            if numbers != sorted(set(numbers)):
                found.append(f"{site.name}: step {record['step']} has parts of {numbers}")
            for part in record["parts"]:
                first = named.setdefault(part["root"], record["step"])
                if first != record["step"]:
                    found.append(f"{site.name}: step {record['step']} names a contribution of step {first} again")
                if part["site"] not in record["view"]["members"]:
                    found.append(f"{site.name}: step {record['step']} has a part of {part['site']}, who is no member")
                if part["base"] != record["parent"]:
                    found.append(f"{site.name}: step {record['step']} has a part of another base")
    return found


def alarms_explained(sites):
    found, happened = [], set().union(*(site.faults for site in sites))
    for site in sites:
        for event in site.events:
            name = event["event"]
            explained = EXPLAINED_BY_OWN.get(name) in site.faults or EXPLAINED_BY_ANY.get(name) in happened
            if event["severity"] == "alarm" and not explained:
                found.append(f"{site.name}: alarm {name} that no fault explains: {event}")
            if name == "torn_line" and "disk_full" not in site.faults:
                found.append(f"{site.name}: a torn line in the event log: {event['text']}")
    return found


def nobody_crashed(sites):
    """A process ends by our kill, or with an exit code because its gateway, or the room on its disk, is gone."""
    found = []
    for site in sites:
        killed = 0
        for event in site.events:
            signal = re.search(r"by signal (\d+)", event.get("what", "")) if event["event"] == "process_restarted" else None
            killed += bool(signal) and signal.group(1) == "9"
            if signal and signal.group(1) != "9":
                found.append(f"{site.name}: {event['what']}")
        if killed > site.kills:
            found.append(f"{site.name}: {killed} processes were killed, {site.kills} of them by the soak")
        found += [f"{site.name}: {end}" for end in site.ends]
    return found


def tokens_accounted(sites):
    """Trained = named in records + reported lost + open at the end."""
    found = []
    for site in sites:
        named = sum(part["tokens"] for r in site.records for part in r["parts"] if part["site"] == site.number)
        if not (site.tokens_trained - site.tokens_open <= named + site.tokens_lost
                <= site.tokens_trained + site.tokens_unwritten):
            found.append(f"{site.name}: {site.tokens_trained} tokens were trained, {named} are named in records and "
                         f"{site.tokens_lost} reported lost; {site.tokens_open} may be open, {site.tokens_unwritten} unwritten")
    return found


def resources_bounded(sites):
    found = []
    for site in sites:
        for role in ("gateway", "rank"):
            lives = [life for life in site.lives if life.role == role and life.rss_mib]
            if not lives:
                continue
            first, most = max(lives[0].rss_mib[:30]), max(max(life.rss_mib) for life in lives)
            if most > RSS_GROWTH * first + RSS_GROWTH_MIB:
                found.append(f"{site.name}: a {role} had {most:.0f} MiB, {first:.0f} at the beginning")
            counts = [life.descriptors for life in lives if life.descriptors]
            if counts and max(map(max, counts)) > max(counts[0][:30]) + DESCRIPTORS_GROWTH:
                found.append(f"{site.name}: a {role} had {max(map(max, counts))} descriptors, {max(counts[0][:30])} at the "
                             "beginning")
            for life in lives:
                found += [f"{site.name}: {role} {life.pid}: {what}" for what in leaks_of(life)]
    return found


def leaks_of(life):
    """What is held late in a long life is no more than what was held early: peers that are away take theirs along."""
    for values, allowed, what in ((life.rss_mib, LEAK_MIB, "MiB"), (life.descriptors, LEAK_DESCRIPTORS, "descriptors")):
        if len(values) < LONG_LIFE_LOOKS:
            continue
        early, late = max(values[:len(values) // 2]), statistics.median(values[3 * len(values) // 4:])
        if late > early + allowed:
            yield f"grew from {early:.0f} to {late:.0f} {what} in one life"


CHECKS = (one_history, equal_roots, decided_by_majorities, contributions_counted_once, alarms_explained, nobody_crashed,
          tokens_accounted, resources_bounded)


def violations(sites):
    return [sentence for check in CHECKS for sentence in check(sites)]
