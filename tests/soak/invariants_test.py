#!/usr/bin/env python3
"""Each check of the soak finds what is planted for it, and nothing in what is well."""
import copy
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import faults
import invariants
import soak_report
import tokens
import watch

STEPS = 4


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
    events = [{"event": "step_applied", "severity": "info", "outer_step": step, "root": digest("root", step).hex()}
              for step in range(1, STEPS + 1)]
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

    def event(self, name, severity="alarm", site=1, **fields):
        self.sites[site].events.append({"event": name, "severity": severity, **fields})

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

    def test_an_alarm_that_another_fault_explains(self):
        self.event("state_not_saved")
        self.sites[0].faults.add("disk_full")
        self.finds(invariants.alarms_explained, "state_not_saved")
        self.sites[1].faults.add("disk_full")
        self.assertEqual(invariants.violations(self.sites), [])

    def test_an_alarm_that_the_other_end_of_a_line_explains(self):
        self.event("wire_violation")
        self.finds(invariants.alarms_explained, "wire_violation")
        self.sites[0].faults.add("corrupt")
        self.assertEqual(invariants.violations(self.sites), [])

    def test_a_torn_line(self):
        self.event("torn_line", "detail", text='{"ti')
        self.finds(invariants.alarms_explained, "a torn line")

    def test_a_crash(self):
        self.event("process_restarted", "warning", what="s2 gateway ended by signal 6 (Aborted)")
        self.finds(invariants.nobody_crashed, "s2 gateway ended by signal 6")

    def test_a_kill_that_was_not_ours(self):
        for _ in range(2):
            self.event("process_restarted", "warning", what="s2 gateway ended by signal 9 (Killed)")
        self.sites[1].kills = 1
        self.finds(invariants.nobody_crashed, "2 processes were killed, 1 of them by the soak")

    def test_an_end_that_nobody_asked_for(self):
        self.sites[1].ends.append("launch ended with exit code 6")
        self.finds(invariants.nobody_crashed, "s2: launch ended with exit code 6")

    def test_tokens_that_vanished(self):
        self.sites[1].tokens_trained += 1
        self.finds(invariants.tokens_accounted, "s2: 41 tokens were trained, 40 are named")

    def test_tokens_from_nowhere(self):
        self.sites[1].tokens_lost += 1
        self.finds(invariants.tokens_accounted, "40 are named in records and 1 reported lost")

    def test_memory(self):
        self.sites[1].lives.append(watch.Life("gateway", 7, [50.0, 140.0], []))
        self.finds(invariants.resources_bounded, "s2: a gateway had 140 MiB, 50 at the beginning")

    def test_a_leak(self):
        self.sites[1].lives[0].rss_mib = [50 + 0.3 * i for i in range(200)]
        self.finds(invariants.resources_bounded, "s2: gateway 102: grew from 80 to 102 MiB in one life")

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
    def line(self, kind, total, step=0):
        return {"kind": kind, "tokens": total, "outer_step": step}

    def test_tokens_of_all_lives(self):
        lines = [self.line("inner_step", 10), self.line("inner_step", 20), self.line("contribution", 20, 1),
                 self.line("inner_step", 30), self.line("resumed", 20), self.line("inner_step", 30)]
        self.assertEqual(tokens.trained_and_open(lines, 1, 10), (40, 20))
        self.assertEqual(tokens.trained_and_open(lines, 0, 10), (40, 40))

    def test_a_life_from_the_beginning_whose_first_line_found_no_room(self):
        lines = [self.line("inner_step", 10), self.line("inner_step", 20), self.line("inner_step", 10)]
        self.assertEqual(tokens.trained_and_open(lines, 0, 10), (30, 30))

    def test_a_life_whose_first_line_found_no_room(self):
        lines = [self.line("resumed", 500), self.line("inner_step", 510), self.line("inner_step", 520),
                 self.line("inner_step", 510)]
        self.assertEqual(tokens.trained_and_open(lines, 0, 10), (30, 30))


class Tails(unittest.TestCase):
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


class Reports(unittest.TestCase):
    def test_says_how_to_repeat_what_was_violated(self):
        report = soak_report.Report(7, 5, 3, "emulated", outer_steps=9, rounds=2, faults={"crash": 2},
                                    stalls=[soak_report.Stall(1.5, 0), soak_report.Stall(4.5, 1)])
        self.assertIn("every invariant holds", report.text())
        self.assertIn("longest 4.5 s (round 1), median 3.0 s", report.text())
        report.violations.append("beta: something")
        self.assertIn("1 VIOLATION\n  beta: something\nagain: tools/soak --seed 7 --minutes 5 --sites 3", report.text())
        self.assertEqual(json.loads(report.json())["violations"], ["beta: something"])


if __name__ == "__main__":
    unittest.main()
