#!/usr/bin/env python3
"""Each check of the soak finds what is planted for it, and nothing in what is well."""
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from federation import DONE, FAILED, HOPELESS, STOPPED
import faults
import injector
import invariants
import soak
import soak_report
import tokens
import watch

STEPS = 4
FULL_FROM, FULL_TO = 100, 110  # seconds, of a disk that was full
NO_ROOM = "cannot write outer/state.1: No space left on device; free some on its file system"


def digest(*words):
    return bytes(str(words), "ascii").ljust(32, b".")[:32]


def history():
    records, parent = [], digest("genesis")
    for step in range(1, STEPS + 1):
        parts = [{"site": site, "root": digest("part", step, site), "tokens": 10, "base": parent} for site in (1, 2, 3)]
        record = {"run": digest("genesis"), "step": step, "parent": parent, "parent_root": digest("root", step - 1),
                  "view": {"members": [1, 2, 3], "voters": [1, 2, 3]}, "parts": parts, "final": step == STEPS,
                  "accepts": [1, 3], "hash": digest("record", step)}
        parent = record["hash"]
        records.append(record)
    return records


def healthy_site(number):
    gateway = watch.Life("gateway", 100 + number, [50.0] * 200, [40] * 200)
    rank = watch.Life("rank", 200 + number, [60.0] * 200, [10] * 200)
    events = [{"event": "step_applied", "severity": "info", "outer_step": step, "root": digest("root", step).hex(),
               "seen": (step, step + 1)} for step in range(1, STEPS + 1)]
    return invariants.SiteFacts(f"s{number}", number, digest("genesis"), history(), STEPS, digest("root", STEPS), events,
                                lives=[gateway, rank], tokens_trained=10 * STEPS)


class Planted(unittest.TestCase):
    def setUp(self):
        self.sites = [healthy_site(number) for number in (1, 2, 3)]

    def finds(self, check, *texts):
        """This check finds something that says so; no other check does."""
        found = invariants.violations(self.sites)
        self.assertEqual(found, check(self.sites))
        self.assertTrue(found)
        for text in texts:
            self.assertTrue(any(text in sentence for sentence in found), found)

    def record(self, site=1, step=2):
        return self.sites[site].records[step - 1]

    def event(self, name, severity="alarm", site=1, seen=(99, 100), **fields):
        self.sites[site].events.append({"event": name, "severity": severity, "seen": seen, **fields})

    def end(self, how, event="process_restarted", seen=(99, 100)):
        self.event(event, "warning", seen=seen, what=f"s2 {how}")

    def suffers(self, kind, begin, end, site=1):
        self.sites[site].faults.append(invariants.Suffered(kind, begin, end))

    def has_full_disk(self, site=1):
        self.suffers("disk_full", FULL_FROM, FULL_TO, site)

    def launch_ends(self, wanted, code, said=""):
        self.sites[1].ends.append(invariants.LaunchEnd("asked to stop", wanted, code, said, 150))

    def test_nothing_in_what_is_well(self):
        self.assertEqual(invariants.violations(self.sites), [])

    def test_another_record(self):
        self.record(step=STEPS)["hash"] = digest("other")
        self.finds(invariants.one_history, "step 4: s2 has another record than s1")

    def test_a_broken_chain(self):
        for site in self.sites:
            site.records[2]["parent"] = digest("other")
            for part in site.records[2]["parts"]:
                part["base"] = digest("other")
        self.finds(invariants.one_history, "s1: record 3 does not follow")

    def test_a_missing_record(self):
        del self.sites[1].records[1]
        self.sites[1].tokens_trained -= 10
        self.finds(invariants.one_history, "record 2 is of step 3")

    def test_an_end_that_is_none(self):
        for site in self.sites:
            site.records[-1]["final"] = False
        self.finds(invariants.one_history, "s3: its last record, of step 4, is not final")

    def test_a_state_that_is_not_the_last(self):
        self.sites[2].state_step, self.sites[2].state_root = STEPS - 1, digest("root", STEPS - 1)
        self.finds(invariants.one_history, "s3: its state is of step 3, its last record of 4")

    def test_a_root_that_a_site_applied(self):
        self.sites[2].events[1]["root"] = digest("other").hex()
        self.finds(invariants.equal_roots, "step 2: 2 different roots")

    def test_a_root_that_a_site_ended_with(self):
        self.sites[0].state_root = digest("other")
        self.finds(invariants.equal_roots, "step 4: 2 different roots, of s1, s1's state")

    def test_a_root_that_a_record_names(self):
        self.record()["parent_root"] = digest("other")
        self.finds(invariants.equal_roots, "step 1: 2 different roots")

    def test_no_majority(self):
        self.record()["accepts"] = [1]
        self.finds(invariants.decided_by_majorities, "s2: step 2: 1 of 3 are no majority")

    def test_one_voter_twice(self):
        self.record()["accepts"] = [1, 1]
        self.finds(invariants.decided_by_majorities, "accepted by [1, 1]")

    def test_two_contributions_of_one_site_in_a_step(self):
        self.record()["parts"][1]["site"] = 1
        self.sites[1].tokens_trained -= 10
        self.finds(invariants.contributions_counted_once, "s2: step 2 has parts of [1, 1, 3]")

    def test_a_contribution_twice(self):
        self.record(step=3)["parts"][1]["root"] = digest("part", 2, 2)
        self.finds(invariants.contributions_counted_once, "step 3 names a contribution of step 2 again")

    def test_a_part_of_no_member(self):
        self.record()["view"] = {"members": [1, 2], "voters": [1, 2, 3]}
        self.finds(invariants.contributions_counted_once, "who is no member")

    def test_a_part_of_another_base(self):
        self.record()["parts"][0]["base"] = digest("other")
        self.finds(invariants.contributions_counted_once, "of another base")

    def test_an_alarm(self):
        self.event("two_contributions")
        self.finds(invariants.alarms_explained, "s2: alarm two_contributions that no fault explains")

    def test_an_alarm_of_a_full_disk(self):
        self.event("state_not_saved", why=NO_ROOM)
        self.finds(invariants.alarms_explained, "s2: alarm state_not_saved that no fault explains")
        self.has_full_disk(site=0)
        self.finds(invariants.alarms_explained, "state_not_saved")
        self.has_full_disk()
        self.assertEqual(invariants.violations(self.sites), [])

    def test_an_alarm_of_another_kind_while_the_disk_is_full(self):
        self.has_full_disk()
        self.event("state_disputed", seen=(104, 105), why=NO_ROOM)
        self.finds(invariants.alarms_explained, "state_disputed")

    def test_an_alarm_for_another_reason_while_the_disk_is_full(self):
        self.has_full_disk()
        self.event("gateway_failed", seen=(104, 105), why="record 7 does not follow the one before it")
        self.finds(invariants.alarms_explained, "gateway_failed")

    def test_an_alarm_before_the_disk_was_full(self):
        self.has_full_disk()
        self.event("disk_failed", seen=(FULL_FROM - 2, FULL_FROM - 1), why=NO_ROOM)
        self.finds(invariants.alarms_explained, "disk_failed")

    def test_an_alarm_after_there_was_room(self):
        self.has_full_disk()
        late = FULL_TO + invariants.GRACE_S
        self.event("disk_failed", seen=(late - 1, late + 1), why=NO_ROOM)
        self.assertEqual(invariants.violations(self.sites), [])
        self.event("disk_failed", seen=(late + 0.5, late + 1), why=NO_ROOM)
        self.finds(invariants.alarms_explained, "disk_failed")

    def test_an_alarm_of_a_process_that_stood_still(self):
        self.has_full_disk()
        self.event("disk_failed", seen=(124, 125), why=NO_ROOM)
        self.suffers("stop_gateway", FULL_FROM + 1, 122, site=0)
        self.suffers("stop_gateway", 90, FULL_FROM - 1)
        self.suffers("stop_gateway", 118, 124)
        self.finds(invariants.alarms_explained, "disk_failed")
        self.suffers("stop_gateway", FULL_FROM + 1, 122)
        self.assertEqual(invariants.violations(self.sites), [])

    def test_nothing_explains_a_violation_of_the_wire(self):
        self.suffers("corrupt", 90, 110)
        self.event("wire_violation", what="a message of 4000000000 bytes")
        self.finds(invariants.alarms_explained, "wire_violation")

    def test_a_torn_line(self):
        self.has_full_disk()
        self.event("torn_line", "detail", text='{"ti')
        self.finds(invariants.alarms_explained, "a torn line")

    def test_lost_lines(self):
        self.event("step_decided", "info", lines_lost_before=3)
        self.finds(invariants.alarms_explained, "3 lines of the event log are lost")

    def test_a_crash(self):
        self.sites[1].kills.append(invariants.Kill("gateway", 99))
        self.end("gateway: ended by signal 6 (Aborted); started again in 0.5 s")
        self.finds(invariants.nobody_crashed, "s2 gateway: ended by signal 6")

    def test_a_kill_that_was_not_ours(self):
        for _ in range(2):
            self.end("gateway: ended by signal 9 (Killed); started again in 0.5 s")
        self.sites[1].kills.append(invariants.Kill("ranks", 99))
        self.sites[1].kills.append(invariants.Kill("gateway", 99 - invariants.GRACE_S - 1))
        self.assertEqual(len(invariants.nobody_crashed(self.sites)), 2)
        self.sites[1].kills.append(invariants.Kill("gateway", 98))
        self.assertEqual(len(invariants.nobody_crashed(self.sites)), 1)
        self.finds(invariants.nobody_crashed, "s2 gateway: ended by signal 9")
        self.sites[1].kills.append(invariants.Kill("gateway", 99))
        self.assertEqual(invariants.violations(self.sites), [])

    def test_an_exit_code(self):
        self.has_full_disk()
        self.sites[1].kills.append(invariants.Kill("gateway", 104))
        self.end("gateway: ended with exit code 1; started again in 0.5 s: disk quota of s2", seen=(104, 105))
        self.finds(invariants.nobody_crashed, "s2 gateway: ended with exit code 1")

    def test_the_exit_code_of_a_full_disk(self):
        self.end("ranks: found no room on the disk; started again in 0.5 s: " + NO_ROOM, seen=(104, 105))
        self.finds(invariants.nobody_crashed, "s2 ranks: found no room on the disk")
        self.has_full_disk()
        self.assertEqual(invariants.violations(self.sites), [])
        self.end("ranks: found no room on the disk; started again in 0.5 s: " + NO_ROOM, seen=(119, 120))
        self.finds(invariants.nobody_crashed, "s2 ranks: found no room on the disk")

    def test_an_end_that_nobody_can_read(self):
        self.end("has ended somehow")
        self.finds(invariants.nobody_crashed, "s2 has ended somehow")

    def test_ends_for_good(self):
        for event in ("process_given_up", "process_stopped"):
            self.setUp()
            self.end("gateway: is gone", event)
            self.finds(invariants.nobody_crashed, "s2 gateway: is gone")

    def test_a_crash_while_it_stops(self):
        self.end("gateway: ended by signal 6 (Aborted) while it stopped: what it did is lost", "process_failed_to_stop")
        self.finds(invariants.nobody_crashed, "s2 gateway: ended by signal 6")

    def test_a_leave_that_ends_otherwise(self):
        self.launch_ends(STOPPED, STOPPED)
        self.launch_ends(DONE, DONE)
        self.assertEqual(invariants.violations(self.sites), [])
        for code, says in ((FAILED, "exit code 1"), (DONE, "exit code 0"), (-6, "exit code -6"),
                           (None, "still ran after 150 s")):
            self.setUp()
            self.launch_ends(STOPPED, code, "its last words")
            self.finds(invariants.nobody_crashed, "s2: asked to stop, launch", says, "its last words")

    def test_a_leave_from_a_full_disk(self):
        no_room = "ranks: found no room on the disk while it stopped: what it did since its last checkpoint may be lost"
        self.launch_ends(STOPPED, FAILED, f"s2 {no_room}")
        self.end(no_room, "process_failed_to_stop", seen=(104, 105))
        self.finds(invariants.nobody_crashed, "s2 ranks: found no room on the disk while it stopped")
        self.has_full_disk()
        self.assertEqual(invariants.violations(self.sites), [])
        self.launch_ends(STOPPED, FAILED, f"s2 {no_room}\ns2 gateway: not gone after 60 s")
        self.finds(invariants.nobody_crashed, "not gone after 60 s")

    def test_an_end_that_nobody_asked_for(self):
        self.launch_ends(None, HOPELESS)
        self.finds(invariants.nobody_crashed, "launch ended with exit code 6")

    def test_tokens_that_vanished(self):
        self.sites[1].tokens_trained += 1
        self.finds(invariants.tokens_accounted, "s2: 41 tokens were trained, 40 are named")

    def test_tokens_from_nowhere(self):
        self.sites[1].tokens_lost += 1
        self.finds(invariants.tokens_accounted, "40 are named in records and 1 reported lost")

    def test_what_was_never_looked_at(self):
        del self.sites[1].lives[0]
        self.finds(invariants.nothing_unseen, "s2: no gateway was ever looked at")

    def test_events_that_tell_of_no_step(self):
        self.sites[1].events.clear()
        self.finds(invariants.nothing_unseen, "s2: its event log tells of no step")

    def test_metrics_that_tell_of_no_contribution(self):
        self.sites[1].tokens_open = self.sites[1].tokens_trained
        self.finds(invariants.nothing_unseen, "s2: its metrics tell of no contribution")

    def test_lives_too_short_for_leaks(self):
        self.assertEqual(invariants.no_long_lives(self.sites), [])
        for site in self.sites:
            del site.lives[1].rss_mib[invariants.LONG_LIFE_LOOKS - 1:]
        self.assertEqual(invariants.no_long_lives(self.sites), ["leaks of a rank: none was looked at 120 times"])

    def test_a_run_that_was_broken_off(self):
        for site in self.sites:
            site.records[-1]["final"] = False
            site.tokens_trained += 1
        self.assertEqual(len(invariants.violations(self.sites)), 6)
        self.assertEqual(invariants.violations_before_the_end(self.sites), [])
        self.record()["hash"] = digest("other")
        self.assertTrue(any("another record" in text for text in invariants.violations_before_the_end(self.sites)))

    def test_memory(self):
        self.sites[1].lives.append(watch.Life("gateway", 7, [50.0, 140.0], []))
        self.finds(invariants.resources_bounded, "s2: a gateway had 140 MiB, 50 at the beginning")

    def test_a_leak(self):
        self.sites[1].lives[0].rss_mib = [50 + 0.3 * i for i in range(200)]
        self.finds(invariants.resources_bounded, "s2: gateway 102: grew from 80 to 102 MiB in one life; the most in each "
                   "tenth of its 200 looks: 56, 62, 68, 74, 80, 86, 92, 98, 104, 110")

    def test_descriptors(self):
        self.sites[1].lives.append(watch.Life("gateway", 7, [50.0], [105]))
        self.finds(invariants.resources_bounded, "had 105 descriptors, 40 at the beginning")

    def test_no_leak_where_a_peer_was_away_for_a_while(self):
        self.sites[1].lives[0].descriptors = [60] * 40 + [47] * 80 + [60] * 80
        self.assertEqual(invariants.violations(self.sites), [])

    def test_descriptors_that_are_never_closed(self):
        self.sites[1].lives[0].descriptors = [40 + i // 8 for i in range(200)]
        self.finds(invariants.resources_bounded, "grew from 52 to 61 descriptors in one life")


class Rounds(unittest.TestCase):
    def test_a_round_is_its_seed_and_number_alone(self):
        kinds = list(faults.KINDS)
        self.assertEqual(faults.draw_round(7, 5, 3, kinds), faults.draw_round(7, 5, 3, kinds))
        self.assertNotEqual(faults.draw_round(7, 5, 3, kinds), faults.draw_round(7, 6, 3, kinds))
        self.assertNotEqual(faults.draw_round(7, 5, 3, kinds), faults.draw_round(8, 5, 3, kinds))

    def test_every_kind_comes_and_none_twice_at_one_place(self):
        seen = set()
        for number in range(200):
            drawn = faults.draw_round(1, number, 3, list(faults.KINDS))
            seen |= {fault.kind for fault in drawn}
            processes = [f.site for f in drawn if faults.GROUPS.get(f.kind) == "process"]
            self.assertEqual(len(processes), len(set(processes)))
            self.assertLessEqual(sum(faults.GROUPS.get(f.kind) == "cut" for f in drawn), 1)
            for fault in drawn:
                self.assertNotEqual(fault.site, fault.other)
                self.assertLessEqual(fault.length, faults.KINDS[fault.kind][2])
                self.assertFalse(number >= faults.SPARED_FROM and fault.site == 0 and fault.kind in faults.ENDS_GATEWAY)
                self.assertIn("alpha", fault.text(["alpha"] * 3))
        self.assertEqual(seen, set(faults.KINDS))

    def test_what_the_machine_cannot_do_is_left_out(self):
        self.assertNotIn("disk_full", faults.possible(["clock"]))
        self.assertIn("clock_jump", faults.possible(["clock"]))
        left_out = faults.left_out({"network": "because of --loopback", "disk": "because of --loopback"})
        self.assertEqual(set(faults.KINDS), {*left_out, *faults.possible(["clock"])})
        self.assertFalse(set(left_out) & set(faults.possible(["clock"])))

    def test_the_report_says_why_kinds_were_left_out(self):
        report = soak_report.Report(1, 1, 3, "loopback")
        self.assertNotIn("left out", report.text())
        report.left_out = faults.left_out({"disk": "because of --loopback", "clock": "as clock_shift is not built"})
        self.assertIn("left out, because of --loopback: disk_full\n", report.text())
        self.assertIn("left out, as clock_shift is not built: clock_jump\n", report.text())


class Books(unittest.TestCase):
    def test_tokens_of_all_lives(self):
        lines = [dict(kind=kind, tokens=total, outer_step=1) for kind, total in (
            ("resumed", 0), ("inner_step", 10), ("inner_step", 20), ("contribution", 20), ("inner_step", 30),
            ("resumed", 20), ("inner_step", 30))]
        self.assertEqual(tokens.trained_and_open(lines, 1), (40, 20))
        self.assertEqual(tokens.trained_and_open(lines, 0), (40, 40))


class StandIn:
    """In the place of a site whose launch ends so, or not at all."""
    name = "s1"

    def __init__(self, folder, code):
        self.folder, self.run_dir, self.code = folder, folder / "s1", code
        self.process = self
        self.done = []

    def wait(self, timeout):
        if self.code is None:
            raise subprocess.TimeoutExpired("launch", timeout)
        return self.code

    def output(self):
        return "its last words"

    def interrupt(self):
        self.done.append("asked to stop")

    def kill_tree(self):
        self.done.append("killed")

    def launch(self, *_, **__):
        self.done.append("launched")


class Leaves(unittest.TestCase):
    def leave(self, code):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        site = StandIn(pathlib.Path(folder.name), code)
        hands = injector.Injector(types.SimpleNamespace(sites=[site], folder=site.folder, arguments=()), wan=None)
        fault = faults.Fault("leave", at=0, length=1, site=0, other=0)
        hands.begin(fault)
        hands.heal(fault)
        return site.done, hands.ends[0]

    def test_what_a_leave_ends_with_is_noted(self):
        for code in (STOPPED, FAILED, -6):
            done, ends = self.leave(code)
            self.assertEqual(done, ["asked to stop", "launched"])
            self.assertEqual(ends, [invariants.LaunchEnd("asked to stop", STOPPED, code, "its last words",
                                                         injector.LEAVE_MAX_S)])

    def test_one_that_hangs_is_killed_and_noted(self):
        done, ends = self.leave(None)
        self.assertEqual(done, ["asked to stop", "killed", "launched"])
        self.assertFalse(invariants.launch_end_explained(ends[0]))


class Waits(unittest.TestCase):
    """Of a soak, for processes and a step, once all is healed."""

    def violations(self, missing, steps):
        told = iter(steps)
        waits = soak.Soak.__new__(soak.Soak)
        waits.report = soak_report.Report(1, 1, 1, "loopback")
        waits.federation = types.SimpleNamespace(sites=[])
        waits.stopping = threading.Event()
        waits.injector = types.SimpleNamespace(wait_for_processes=lambda timeout: missing)
        waits.watch = types.SimpleNamespace(steps=lambda: [next(told, steps[-1])])
        waits.progress = types.SimpleNamespace(say=lambda text: None, show=lambda: None)
        with mock.patch.object(soak, "STALL_MAX_S", 0.3):
            waits.wait_for_steps("round 7", 1, number=7)
        return waits.report.violations

    def test_for_what_comes(self):
        self.assertEqual(self.violations([], [3, 4]), [])

    def test_for_a_process_that_does_not_come_back(self):
        self.assertIn("round 7: 0 s after all was healed s2 had no gateway or rank", self.violations(["s2"], [3, 4]))

    def test_for_a_step_that_does_not_come(self):
        self.assertIn("the sites have applied [3] steps, and should have 4", self.violations([], [3])[0])


class Tails(unittest.TestCase):
    def test_a_watch_that_saw_nothing_any_more(self):
        blind = watch.Watch([])
        blind.failure = OSError("too many open files")
        self.assertRaises(OSError, blind.end)

    def test_lines_and_records_as_they_grow(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "events")
            events, records = watch.EventTail(path), watch.RecordTail(path)
            self.assertEqual((list(events.poll()), records.poll()), ([], 0))
            path.write_bytes(b'{"event":"a"}\n{"eve')
            self.assertEqual([e["event"] for e in events.poll()], ["a"])
            path.write_bytes(path.read_bytes() + b'nt":"b"}\nnonsense\n')
            self.assertEqual([e["event"] for e in events.poll()], ["b", "torn_line"])
            path.write_bytes(b"\2\0\0\0xy\1\0\0\0z\5\0\0\0ab")
            self.assertEqual(records.poll(), 2)
            path.write_bytes(b"\2\0\0\0xy")
            self.assertEqual(records.poll(), 1)


    def test_between_which_looks_an_event_was_written(self):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            site = watch.SiteWatch(types.SimpleNamespace(name="s1", run_dir=pathlib.Path(folder)))
            site.look()
            looked = time.monotonic()
            (site.site.run_dir / "events.jsonl").write_text('{"event":"a","severity":"alarm","time":7}\n'
                                                            '{"event":"b","severity":"info","lines_lost_before":1}\n'
                                                            '{"event":"c","severity":"info"}\n')
            site.look()
            self.assertEqual([event["event"] for event in site.events_kept], ["a", "b"])
            before, seen = site.events_kept[0]["seen"]
            self.assertTrue(began <= before <= looked <= seen <= time.monotonic())


class Reports(unittest.TestCase):
    def test_says_how_to_repeat_what_was_violated(self):
        report = soak_report.Report(7, 5, 3, "emulated", outer_steps=9, rounds=2, faults={"crash": 2},
                                    stalls=[soak_report.Stall(1.5, 0), soak_report.Stall(4.5, 1)])
        self.assertIn("every invariant holds", report.text())
        self.assertIn("longest 4.5 s (round 1), median 3.0 s", report.text())
        report.violations.append("beta: something")
        self.assertIn("1 VIOLATION\n  beta: something\nagain: tools/soak --seed 7 --minutes 5 --sites 3", report.text())
        self.assertEqual(json.loads(report.json())["violations"], ["beta: something"])

    def test_what_was_broken_off_does_not_hold(self):
        report = soak_report.Report(7, 5, 3, "emulated", broken_off=["ValueError: of the soak"])
        self.assertIn("BROKEN OFF, so that not everything was checked:\nValueError: of the soak", report.text())
        self.assertNotIn("every invariant holds", report.text())


if __name__ == "__main__":
    unittest.main()
