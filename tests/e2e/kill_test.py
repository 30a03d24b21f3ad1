#!/usr/bin/env python3
"""kill -9 at a named point: the run still ends at its planned steps, and the roots agree.

    python3 tests/e2e/kill_test.py before_close
"""
import sys
import time
import unittest

from federation import Case, DONE, Federation
import outer_files

POINTS = ("before_close", "between_vote_and_accept", "saving", "merging", "state_transfer", "final")
STEPS = 4
point = None


class Kill(Case):
    def end_of(self, federation, sites):
        roots = {}
        for site in sites:
            newest = outer_files.Site(site.run_dir).states()[0]
            self.assertEqual(newest.step, STEPS, f"{site.name}:\n{site.output()}")
            roots[site.name] = newest.claimed_root.hex()
        self.assertEqual(len(set(roots.values())), 1, roots)

    def run_with_kill(self, names, process):
        step = {"final": STEPS, "state_transfer": 0}.get(point, 2)
        # A site whose initial parameters differ fetches the state of step 0.
        arguments = ("--set", "model.seed=5") if point == "state_transfer" else ()
        with Federation(*names, outer_steps=STEPS, min_sites=2) as federation:
            victim, others = federation.sites[-1], federation.sites[:-1]
            for site in others:
                site.launch()
            victim.launch(*arguments, environment={"ISTHMUS_KILL_AT": f"{process}:{point}:{step}"})
            federation.wait(90)
            self.end_of(federation, federation.sites)
            self.assertTrue(victim.events("process_restarted"), f"nothing was killed:\n{victim.output()}")

    def test_gateway_of_two_sites(self):
        self.run_with_kill(("alpha", "beta"), "gateway")

    def test_rank_of_two_sites(self):
        self.run_with_kill(("alpha", "beta"), "rank")

    def test_gateway_of_three_sites(self):
        self.run_with_kill(("alpha", "beta", "gamma"), "gateway")

    def test_rank_of_three_sites(self):
        self.run_with_kill(("alpha", "beta", "gamma"), "rank")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in POINTS:
        sys.exit(f"which point? {', '.join(POINTS)}")
    point = sys.argv.pop(1)
    unittest.main()
