#!/usr/bin/env python3
"""The operator's word: who votes changes while the run lasts, and where it goes on when a majority is lost for good."""
import time
import unittest

from federation import Case, DONE, Federation, isthmus, wait_until


class Roster(Case):
    def test_the_operator_says_where_to_go_on_without_a_majority(self):
        steps = 400
        with Federation("alpha", "beta", "gamma", min_sites=1, outer_steps=steps) as federation:
            alpha, beta, gamma = federation.sites
            federation.launch()
            gamma.wait_for_event("step_applied", outer_step=3)
            alpha.kill_tree()
            beta.kill_tree()
            # It goes on with nobody: two of three votes are gone.
            saved = [0]

            def rests():
                before, saved[0] = saved[0], gamma.status()["saved_step"]
                time.sleep(1)
                return before == saved[0] == gamma.status()["outer_step"] > 0

            wait_until(rests, 30, lambda: gamma.output())
            self.assertLess(saved[0], steps, "the run was over too soon for this test")
            status = gamma.status()
            wrong = isthmus("roster", "recover", "roster.toml", "--key", "operator.key", "--run", status["run"], "--step",
                            str(saved[0]), "--root", "00" * 32, "--voter", "gamma", cwd=federation.folder)
            self.assertEqual(wrong.returncode, DONE, wrong.stdout)
            gamma.interrupt()
            gamma.wait(30)
            gamma.launch()
            wait_until(lambda: status["state_root"] in gamma.output(), 30, gamma.output)  # what it has instead
            gamma.kill_tree()
            said = federation.run("roster", "recover", "roster.toml", "--key", "operator.key", "--run", status["run"], "--step",
                                  str(saved[0]), "--root", status["state_root"], "--voter", "gamma")
            self.assertNotIn("vote no more", said)  # since the roster before
            self.assertIn("Sites that vote no more: alpha, beta.", wrong.stdout)
            gamma.launch()
            gamma.wait_for_event("step_applied", outer_step=saved[0] + 2)
            # A site that comes back takes part again, and votes once a newer roster says so.
            text = (federation.folder / "roster.toml").read_text()
            epoch = int(text.split("epoch = ")[1].split()[0])
            (federation.folder / "roster.toml").write_text(
                text.replace(f"epoch = {epoch}", f"epoch = {epoch + 1}").replace("voter = false", "voter = true", 1))
            federation.sign_roster()
            gamma.interrupt()
            gamma.wait(30)
            applied = len(gamma.events("step_applied"))
            gamma.launch()
            alpha.launch()
            gamma.wait_for_event("step_applied", count=applied + 1)
            wait_until(lambda: sorted(gamma.status()["voters"]) == ["alpha", "gamma"], 60, gamma.output)
            gamma.interrupt()
            gamma.wait(30)
            self.assertGreaterEqual(gamma.events("step_applied")[-1]["outer_step"], saved[0] + 2)

    def test_a_newer_roster_gives_a_site_its_vote(self):
        with Federation("alpha", "beta", "gamma", voters=("alpha", "beta"), min_sites=1, outer_steps=2000) as federation:
            alpha, beta, gamma = federation.sites
            federation.launch()
            # It may join before or after its vote comes: the roster names the run.
            alpha.wait_for_event("step_applied", outer_step=2)
            self.assertEqual(sorted(alpha.status()["voters"]), ["alpha", "beta"])
            text = (federation.folder / "roster.toml").read_text()
            epoch = int(text.split("epoch = ")[1].split()[0])
            text = text.replace(f"epoch = {epoch}", f"epoch = {epoch + 1}\nrun = \"{alpha.status()['run']}\"").replace("voter = false", "voter = true")
            (federation.folder / "roster.toml").write_text(text)
            federation.sign_roster()
            for site in federation.sites:
                site.interrupt()
                site.wait(30)
                if site is alpha:
                    applied = len(alpha.events("step_applied"))
                site.launch()
            alpha.wait_for_event("step_applied", count=applied + 1)  # its gateway is there again
            wait_until(lambda: sorted(alpha.status()["voters"]) == ["alpha", "beta", "gamma"], 60, alpha.output)
            # And it counts: without beta two of three decide.
            beta.kill_tree()
            step = alpha.status()["outer_step"]
            alpha.wait_for_event("step_applied", outer_step=step + 3)


if __name__ == "__main__":
    unittest.main()
