#!/usr/bin/env python3
"""A run from its beginning to its planned end, and what it leaves on disk, read back independently."""
import json
import subprocess
import time
import unittest

from federation import Case, DONE, Federation, ISTHMUS, STOPPED, isthmus, wait_until
import outer_files


def states(site):
    reader = outer_files.Site(site.run_dir)
    return reader, reader.states()


class Run(Case):
    def check_end(self, federation, steps):
        """Every site ends at the last step with the same state, by roots recomputed from its files."""
        newest = {}
        for site in federation.sites:
            _, found = states(site)
            self.assertEqual(found[0].step, steps, site.name)
            newest[site.name] = found[0].claimed_root.hex()
        self.assertEqual(len(set(newest.values())), 1, newest)

    def check_history(self, federation):
        """All sites keep one history of records, each named by the next, accepted by a majority."""
        histories = []
        for site in federation.sites:
            reader = outer_files.Site(site.run_dir)
            records = reader.records()
            parent = reader.genesis["hash"]
            for record in records:
                self.assertEqual(record["parent"], parent)
                self.assertEqual(record["run"], reader.genesis["hash"])
                self.assertGreaterEqual(2 * len(set(record["accepts"])), len(record["view"]["voters"]) + 1)
                parent = record["hash"]
            self.assertTrue(records[-1]["final"])
            histories.append([r["hash"] for r in records])
        self.assertEqual(histories.count(histories[0]), len(histories))

    def check_last_step(self, federation):
        """The last state is what its record says, recomputed from the kept bytes of the contributions; it differs from
        the state before, and from what each site contributed."""
        reader, (last, before) = states(federation.sites[0])
        record = reader.records()[-1]
        self.assertEqual((last.step, before.step), (record["step"], record["step"] - 1))
        self.assertEqual(record["parent_root"], before.claimed_root)
        self.assertNotEqual(last.claimed_root, before.claimed_root)
        for part in record["parts"]:
            delta = reader.contribution(record["step"], part["site"])
            self.assertIsNotNone(delta, "the last contributions are kept")
            own = outer_files.array.array("f", map(lambda a, d: outer_files.f32(a - d), before.agreed, delta))
            self.assertNotEqual(outer_files.state_root(reader.layout, own, last.momentum), last.claimed_root)
        agreed, momentum = reader.outer_step(before, record)
        self.assertEqual(outer_files.state_root(reader.layout, agreed, momentum), last.claimed_root)

    def test_two_sites_end_as_planned_with_equal_state(self):
        with Federation("alpha", "beta", outer_steps=5) as federation:
            federation.launch()
            federation.wait()
            self.check_end(federation, 5)
            self.check_history(federation)
            self.check_last_step(federation)
            for site in federation.sites:
                self.assertEqual(len(site.events("step_applied")), 5)

            # Launched again, a finished run says so and changes nothing.
            _, before = states(federation.sites[0])
            federation.launch()
            federation.wait()
            _, after = states(federation.sites[0])
            self.assertEqual(before[0].claimed_root, after[0].claimed_root)
            for site in federation.sites:
                self.assertEqual(site.events("wire_stranger"), [], "nobody but the sites came")
            result = isthmus("status", "alpha.toml", cwd=federation.folder)
            self.assertEqual(result.returncode, DONE)
            self.assertIn("its run is complete: 5 outer steps", result.stdout)
            result = isthmus("status", "alpha.toml", "beta.toml", "--json", cwd=federation.folder)
            self.assertEqual(result.returncode, DONE)
            told = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
            self.assertEqual([(site["site"], site["complete"], site["outer_step"]) for site in told],
                             [("alpha", True, 5), ("beta", True, 5)])

            # Nor does it become longer.
            federation.launch("--set", "sync.outer_steps=7")
            federation.wait()
            self.check_end(federation, 5)
            self.assertIn("sync.outer_steps = 7 adds none", federation.sites[0].output())

            # Also where the ranks come when their gateways have nothing more to say to each other.
            gateways = [subprocess.Popen([ISTHMUS, "gateway", site.file], cwd=federation.folder, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                        for site in federation.sites]
            for gateway in gateways:
                self.addCleanup(gateway.kill)
            for site in federation.sites:
                site.wait_for_event("run_finished", 20, count=3)
            time.sleep(1)
            for site in federation.sites:
                self.assertEqual(isthmus("train", site.file, cwd=federation.folder, timeout=20).returncode, DONE)
            for gateway in gateways:
                self.assertEqual(gateway.wait(20), DONE)

    def test_three_sites_with_unequal_work_and_nesterov(self):
        with Federation("alpha", "beta", "gamma", outer_steps=4) as federation:
            text = federation["beta"].file.read_text()
            federation["beta"].file.write_text(text.replace("micro_batch = 2", "micro_batch = 5"))
            federation.launch("--set", 'sync.outer="nesterov"')
            federation.wait()
            self.check_end(federation, 4)
            self.check_last_step(federation)
            record = outer_files.Site(federation.sites[0].run_dir).records()[-1]
            tokens = [part["tokens"] for part in record["parts"]]
            self.assertEqual(len(tokens), 3)
            self.assertEqual(tokens[1] * 2, tokens[0] * 5)

    def test_interrupted_it_ends_cleanly_and_goes_on(self):
        with Federation("alpha", "beta", outer_steps=40) as federation:
            for stop in range(1, 4):
                before = len(federation["alpha"].events("step_applied"))
                federation.launch()
                federation["alpha"].wait_for_event("step_applied", count=max(8 * stop, before + 1))
                for site in federation.sites:
                    site.interrupt()
                for site in federation.sites:
                    self.assertEqual(site.wait(30), STOPPED, site.output())
                    self.assertEqual(site.pids(), [], "processes are left")
                    checkpoints = list((site.run_dir / "checkpoints").iterdir())
                    self.assertTrue(checkpoints)
            _, found = states(federation["alpha"])
            self.assertLess(found[0].step, 40)
            federation.launch()
            federation.wait()
            self.check_end(federation, 40)
            self.check_history(federation)

    def test_work_that_a_stop_leaves_uncontributed_is_in_the_run(self):
        # Over a slow link ranks are ahead of the outer step, which may be decided when they are gone.
        slow = ("--set", 'gateway.rate_limit="256 kbit/s"', "--set", "sync.max_lead=3")
        with Federation("alpha", "beta", outer_steps=12) as federation:
            for stop in range(1, 5):
                before = len(federation["alpha"].events("step_applied"))
                federation.launch(*slow)
                federation["alpha"].wait_for_event("step_applied", count=max(2 * stop, before + 1))
                time.sleep(0.15 * stop)
                for site in federation.sites[:stop % 2 + 1]:  # both, or one
                    site.interrupt()
                    self.assertEqual(site.wait(30), STOPPED, site.output())
                for site in federation.sites[stop % 2 + 1:]:
                    time.sleep(1)
                    site.interrupt()
                    self.assertEqual(site.wait(30), STOPPED, site.output())
            federation.launch("--set", "sync.max_lead=3")
            federation.wait()
            self.check_end(federation, 12)
            for site in federation.sites:
                self.assertEqual(site.events("tokens_lost"), [])

    def test_a_site_that_only_dials_takes_part_in_full(self):
        # All of both directions is over alpha's listener; its congestion control wants many connections for bulk, which
        # beta has to dial.
        with Federation("alpha", "beta", dialing=["beta"], outer_steps=150) as federation:
            alpha, beta = federation.sites
            self.assertNotIn("listen", beta.file.read_text())
            self.assertIn("only dials", federation.run("roster", "show", "roster.toml"))
            alpha.launch("--set", 'gateway.congestion_control="cubic"')
            beta.launch()
            alpha.wait_for_event("step_applied")

            def both_ways():
                links = [link for site in federation.sites for link in site.status().get("links", [])
                         if link["bulk_connections"] >= 8 and link["chunks_sent"] > 0]
                return links if len(links) == 2 else None

            there, here = wait_until(both_ways, 20, beta.output)
            self.assertEqual([(l["peer"], l["state"]) for l in (there, here)], [("beta", "up"), ("alpha", "up")])
            self.assertEqual((there["address"], here["address"]), ("", alpha.address))
            federation.wait()
            self.check_end(federation, 150)
            self.check_history(federation)
            for site, dialed in ((alpha, False), (beta, True)):
                ups = site.events("wire_up")
                self.assertEqual({up["lane"] for up in ups}, {"control", "bulk"}, site.name)
                self.assertEqual({up["dialed"] for up in ups}, {dialed}, site.name)

    def test_of_three_one_may_stay_away_for_good(self):
        with Federation("alpha", "beta", "gamma", outer_steps=30, min_sites=2) as federation:
            federation.launch()
            gamma = federation.sites.pop()
            try:
                gamma.wait_for_event("step_applied", count=2)
            finally:
                gamma.kill_tree()
            federation.wait(100)
            self.check_end(federation, 30)
            self.check_history(federation)
            views = [len(r["view"]["members"]) for r in outer_files.Site(federation.sites[0].run_dir).records()]
            self.assertEqual((views[0], views[-1]), (3, 2), "it is waited for no longer")

    def test_another_seed_of_the_model_takes_the_agreed_start(self):
        with Federation("alpha", "beta", outer_steps=3) as federation:
            federation["alpha"].launch()
            federation["beta"].launch("--set", "model.seed=5")
            federation.wait()
            self.check_end(federation, 3)


if __name__ == "__main__":
    unittest.main()
