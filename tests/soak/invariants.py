"""What must always hold (inter/PROTOCOL.md), checked on what sites left behind and on what was seen of their processes.

Each check takes plain data and gives sentences, one for each violation; invariants_test.py plants violations in that
data. What the sites' files say is read independently of our C++ (tests/e2e/outer_files.py).
"""
import collections
import dataclasses
import errno
import math
import os
import re
import statistics

from federation import FAILED, STOPPED
import outer_files

# The only alarms that a fault explains: a full disk, if they say that they are of it. What is damaged on its way TLS and
# CURVE refuse before anybody reads it, so no damage explains a `wire_violation`.
OF_A_FULL_DISK = ("disk_failed", "checkpoint_failed", "contribution_failed", "state_not_saved", "gateway_failed",
                  "training_failed")
NO_ROOM = os.strerror(errno.ENOSPC)
NO_ROOM_END = "found no room on the disk"  # exit code 7 (launcher/restart_policy.cc)
# What found no room is tried again within so long (kRetryDisk, RestartOptions::delay_for_room_max), and finds it: who has
# not said by then that there was none has met something else. One that stands still says it when it goes on.
GRACE_S = 5
STANDING_STILL = ("stop_gateway", "stop_rank", "stop_site")
ENDS_OF_PROCESSES = ("process_restarted", "process_failed_to_stop")
RSS_GROWTH_MIB = 64  # beyond what a process held at the beginning, whatever came
RSS_GROWTH = 1.5
LEAK_MIB, LEAK_DESCRIPTORS = 16, 8  # of one long life, from its first half to its last quarter
DESCRIPTORS_GROWTH = 64
LONG_LIFE_LOOKS = 120


@dataclasses.dataclass
class Suffered:
    """A fault of one site, in seconds of our monotonic clock, as all times here."""
    kind: str
    begin: float
    end: float = math.inf


@dataclasses.dataclass
class Kill:
    role: str  # "gateway", "ranks"
    at: float


@dataclasses.dataclass
class LaunchEnd:
    when: str
    wanted: object  # the exit code that it should have had; None: it should not have ended
    code: object  # None: it still ran after `waited` seconds
    said: str
    waited: float = 0


@dataclasses.dataclass
class SiteFacts:
    name: str
    number: int  # its id in records
    genesis: bytes
    records: list  # as outer_files reads them
    state_step: int
    state_root: bytes  # recomputed from the values
    events: list = dataclasses.field(default_factory=list)  # warnings, alarms, steps applied; "seen": between two times
    faults: list = dataclasses.field(default_factory=list)
    kills: list = dataclasses.field(default_factory=list)  # ours, of one process
    lives: list = dataclasses.field(default_factory=list)
    ends: list = dataclasses.field(default_factory=list)  # of launch
    tokens_trained: int = 0
    tokens_lost: int = 0
    tokens_open: int = 0  # at most: trained since the last contribution that a record names


def read_site(site, number):
    """What the files of a site say."""
    reader = outer_files.Site(site.run_dir)
    newest = reader.states()[0]  # which recomputes the root
    return SiteFacts(site.name, number, reader.genesis["hash"], reader.records(), newest.step, newest.claimed_root)


def one_history(sites, finished=True):
    """All sites have the same records, each named by the next, and the state of the last."""
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
        if finished and site.state_step != len(site.records):
            found.append(f"{site.name}: its state is of step {site.state_step}, its last record of {len(site.records)}")
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


def told_until(fault, faults):
    """When the last of what this fault causes is told."""
    until = fault.end + GRACE_S
    for other in sorted(faults, key=lambda other: other.begin):
        if other.kind in STANDING_STILL and fault.begin <= other.end and other.begin <= until:
            until = max(until, other.end + GRACE_S)
    return until


def disk_was_full(site, event):
    """When this was told, or so shortly before that it may be of that."""
    before, seen = event["seen"]
    return any(fault.kind == "disk_full" and fault.begin <= seen and before <= told_until(fault, site.faults)
               for fault in site.faults)


def alarms_explained(sites):
    found = []
    for site in sites:
        for event in site.events:
            name = event["event"]
            explained = name in OF_A_FULL_DISK and NO_ROOM in event.get("why", "") and disk_was_full(site, event)
            if event["severity"] == "alarm" and not explained:
                found.append(f"{site.name}: alarm {name} that no fault explains: {event}")
            if name == "torn_line":
                found.append(f"{site.name}: a torn line in the event log: {event['text']}")
            if "lines_lost_before" in event:
                found.append(f"{site.name}: {event['lines_lost_before']} lines of the event log are lost before {event}")
    return found


def nobody_crashed(sites):
    """A process ends by a kill of ours, or since it finds no room on a full disk, or as it is asked to."""
    found = []
    for site in sites:
        kills = sorted(site.kills, key=lambda kill: kill.at)
        for event in site.events:
            if event["event"] in ("process_given_up", "process_stopped"):
                found.append(f"{site.name}: {event['what']}")
            if event["event"] in ENDS_OF_PROCESSES and not process_end_explained(site, event, kills):
                found.append(f"{site.name}: a process ended that no fault ends: {event['what']}")
        found += [f"{site.name}: {end.when}, launch {how_it_ended(end)}; it said:\n{end.said[-2000:]}"
                  for end in site.ends if not launch_end_explained(end)]
    return found


def process_end_explained(site, event, kills):
    """Takes the kill of ours that it was from `kills`."""
    said = re.match(rf"{re.escape(site.name)} (gateway|ranks): (.*)", event["what"])
    if said is None:
        return False
    role, how = said.groups()
    if how.startswith(NO_ROOM_END):
        return disk_was_full(site, event)
    before, seen = event["seen"]
    ours = next((k for k in kills if k.role == role and k.at <= seen and before <= k.at + GRACE_S), None)
    if not how.startswith("ended by signal 9 ") or ours is None:
        return False
    kills.remove(ours)
    return True


def how_it_ended(end):
    return f"still ran after {end.waited:.0f} s" if end.code is None else f"ended with exit code {end.code}"


def launch_end_explained(end):
    """Where a process had nothing saved when it was asked to stop launch says which (process_failed_to_stop), and ends
    with FAILED; so it does too when it had to kill one."""
    unsaved = "while it stopped" in end.said and "not gone after" not in end.said
    return end.code is not None and (end.code == end.wanted or (end.wanted == STOPPED and end.code == FAILED and unsaved))


def tokens_accounted(sites):
    """Trained = named in records + reported lost + open at the end."""
    found = []
    for site in sites:
        named = sum(part["tokens"] for r in site.records for part in r["parts"] if part["site"] == site.number)
        if not site.tokens_trained - site.tokens_open <= named + site.tokens_lost <= site.tokens_trained:
            found.append(f"{site.name}: {site.tokens_trained} tokens were trained, {named} are named in records and "
                         f"{site.tokens_lost} reported lost; {site.tokens_open} may be open")
    return found


def nothing_unseen(sites):
    """What there was nothing to look at for was not checked."""
    found = []
    for site in sites:
        roles = {life.role for life in site.lives if life.rss_mib}
        found += [f"{site.name}: no {role} was ever looked at" for role in ("gateway", "rank") if role not in roles]
        if not any(event["event"] == "step_applied" for event in site.events):
            found.append(f"{site.name}: its event log tells of no step that it applied")
        named = any(part["site"] == site.number for record in site.records for part in record["parts"])
        if site.tokens_trained == 0 or (named and site.tokens_trained == site.tokens_open):
            found.append(f"{site.name}: its metrics tell of no contribution that a record names")
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
            tenths = [max(values[tenth * len(values) // 10:(tenth + 1) * len(values) // 10]) for tenth in range(10)]
            yield (f"grew from {early:.0f} to {late:.0f} {what} in one life; the most in each tenth of its {len(values)} looks: "
                   + ", ".join(f"{most:.0f}" for most in tenths))


def no_long_lives(sites):
    """Roles of which no process lived long enough to show a leak."""
    return [f"leaks of a {role}: none was looked at {LONG_LIFE_LOOKS} times" for role in ("gateway", "rank")
            if not any(life.role == role and len(life.rss_mib) >= LONG_LIFE_LOOKS for site in sites for life in site.lives)]


CHECKS = (one_history, equal_roots, decided_by_majorities, contributions_counted_once, alarms_explained, nobody_crashed,
          tokens_accounted, resources_bounded, nothing_unseen)
OF_THE_END = (one_history, tokens_accounted)


def violations(sites):
    return [sentence for check in CHECKS for sentence in check(sites)]


def violations_before_the_end(sites):
    """Of a run that did not come to its end: its history has none, and its books are open."""
    checks = [check for check in CHECKS if check not in OF_THE_END]
    return one_history(sites, finished=False) + [sentence for check in checks for sentence in check(sites)]
