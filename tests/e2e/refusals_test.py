#!/usr/bin/env python3
"""What is wrong is said clearly, by the process that sees it, and nothing is lost for the others."""
import datetime
import os
import pathlib
import re
import signal
import time
import unittest

from federation import BAD_USAGE, Case, DONE, Federation, STOPPED, UNAVAILABLE, Site, isthmus, wait_until, some_text, SITE_FILE, PORT


class Refusals(Case):
    def test_a_file_with_five_faults_names_each_with_its_place(self):
        with Federation("alpha", "beta") as federation:
            alpha = federation["alpha"]
            text = alpha.file.read_text()
            faults = [
                ("hidden = 32", "hiden = 32", "hidden"),                # a typo: the nearest name
                ("layers = 1", "layers = -1", "layers"),                # out of range
                ('codec = "int8"', 'codec = "int9"', "int8"),           # no such choice
                ("micro_batch = 2", 'micro_batch = "two"', "micro_batch"),  # another type
                ("outer_steps = 4", "", "outer_steps"),                 # missing
            ]
            for old, new, _ in faults:
                self.assertIn(old, text)
                text = text.replace(old, new)
            alpha.file.write_text(text)
            for command in ("check", "launch"):
                result = isthmus(command, alpha.file, cwd=federation.folder)
                self.assertEqual(result.returncode, BAD_USAGE, result.stdout)
                for _, new, named in faults:
                    self.assertIn(named, result.stdout)
                    if new:
                        line = text[:text.index(new)].count("\n") + 1
                        self.assertRegex(result.stdout, rf"alpha\.toml:{line}:\d+", f"{command}: no place of {new}")
                self.assertFalse(alpha.run_dir.exists(), f"{command} touched the run directory")

    def test_an_expired_roster_begins_no_session(self):
        # No roster that has expired is made or signed, so this one does after that.
        expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=5)
        with Federation("alpha", "beta", expires=expires.strftime("%Y-%m-%dT%H:%M:%SZ")) as federation:
            time.sleep(max(0, (expires - datetime.datetime.now(datetime.timezone.utc)).total_seconds()))
            federation.launch()
            for site in federation.sites:
                self.assertNotEqual(site.wait(30), DONE)
                self.assertIn("expired", site.output())
                self.assertEqual(site.events("step_applied"), [])

    def test_an_address_of_another_machine_is_refused_at_once(self):
        with Federation("alpha") as federation:
            result = isthmus("launch", federation["alpha"].file, "--plain", "--set", 'gateway.listen="192.0.2.1:7700"',
                             cwd=federation.folder)
            self.assertEqual(result.returncode, BAD_USAGE, result.stdout)
            self.assertIn("must be an address of this machine", result.stdout)

    def test_a_second_trainer_leaves_the_run_alone(self):
        with Federation("alpha", outer_steps=100_000) as federation:
            alpha = federation["alpha"].launch()
            alpha.wait_for_event("step_applied", 60)
            result = isthmus("train", alpha.file, cwd=federation.folder)
            self.assertEqual(result.returncode, UNAVAILABLE, result.stdout)
            self.assertIn("another process already trains this site", result.stdout)
            self.assertEqual(alpha.events("training_failed"), [])
            step = len(alpha.events("step_applied"))
            alpha.wait_for_event("step_applied", 60, count=step + 2)

    def test_a_site_that_gives_up_does_not_stop_those_that_can_go_on(self):
        with Federation("alpha", "beta", "gamma", outer_steps=60, min_sites=2) as federation:
            alpha, _, gamma = federation.sites
            launch = alpha.launch(*(str(site.file) for site in federation.sites[1:]), "--plain")
            gamma.wait_for_event("step_applied", 60)
            gamma.file.write_text(gamma.file.read_text().replace("micro_batch = 2", "micro_batch = 0"))
            own = f"{gamma.file}".encode()
            for pid in launch.pids():
                if own in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() and \
                        b"gateway" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            self.assertEqual(launch.wait(120), BAD_USAGE, launch.output())
            self.assertIn("the other sites go on without it", launch.output())
            self.assertEqual(len(alpha.events("run_finished")), 1, launch.output())

    def test_a_roster_that_was_changed_is_not_even_read(self):
        with Federation("alpha", "beta") as federation:
            roster = federation.folder / "roster.toml"
            roster.write_text(re.sub("expires = .*", "expires = 2020-01-01T00:00:00Z", roster.read_text()))
            result = isthmus("check", "alpha.toml", cwd=federation.folder)
            self.assertEqual(result.returncode, BAD_USAGE)
            self.assertIn("not signed by the operator", result.stdout)
            self.assertNotIn("expired", result.stdout)

    def test_another_model_at_one_site_is_refused_at_both_ends(self):
        self.refused_at_both_ends("model.hidden=64", "shape of ")

    def test_a_model_of_the_same_shapes_that_computes_differently_is_refused_too(self):
        self.refused_at_both_ends("model.rope_theta=20000", "model settings: rope_theta ")

    def refused_at_both_ends(self, override, field):
        with Federation("alpha", "beta") as federation:
            alpha, beta = federation.sites
            alpha.launch()
            beta.launch("--set", override)
            for site, peer in ((alpha, "beta"), (beta, "alpha")):
                wait_until(lambda: field in site.output() or
                           any(field in str(e) for e in site.events()), 30,
                           lambda: f"{site.name} does not name the field:\n{site.output()}")
                self.assertEqual(site.events("step_applied"), [])
            # Put right, the run goes on with what alpha has.
            beta.kill_tree()
            beta.launch()
            federation.wait()

    def test_an_unlisted_key_is_refused_and_disturbs_nobody(self):
        with Federation("alpha", "beta", outer_steps=60) as federation:
            alpha, beta = federation.sites
            # Gamma has a roster of its own making, signed by the same operator, but the others were not given it.
            gamma = Site(federation.folder, "gamma", 3, f"{federation.network}.3:{PORT}", f"{federation.network}.3:{PORT}")
            (federation.folder / "gamma.txt").write_text(some_text(3))
            federation.run("keys", "generate", "gamma.key")
            (federation.folder / "own.toml").write_text((federation.folder / "roster.toml").read_text())
            federation.add_to_roster(gamma, "own.toml")
            federation.sign_roster("own.toml")
            gamma.file.write_text(SITE_FILE.format(name="gamma", id=3, address=gamma.address, **federation.options)
                                  .replace("roster.toml", "own.toml"))
            federation.launch()
            alpha.wait_for_event("step_applied")
            federation.sites.append(gamma)
            gamma.launch()
            refused = wait_until(lambda: [e for e in alpha.events() + beta.events() if "refused" in e["event"]], 30,
                                 lambda: f"nobody reports the stranger; gamma said:\n{gamma.output()}")
            self.assertTrue(refused)
            for site in (alpha, beta):
                self.assertEqual(site.wait(60), DONE, site.output())
            self.assertEqual(gamma.events("step_applied"), [])

    def test_a_second_process_of_a_site_is_refused_and_ends(self):
        # Nobody answers at beta's address in the roster: only alpha can tell two betas apart.
        with Federation("alpha", "beta", outer_steps=100000, relayed=("beta",)) as federation:
            federation.launch()
            twins = []
            for host, site in enumerate(list(federation.sites), 50):
                site.wait_for_event("step_applied")
                twin = Site(federation.folder, site.name, site.number, site.address, site.advertised)
                twin.run_dir = federation.folder / f"{site.name}-twin"
                twin.launches = 10
                federation.sites.append(twin)  # ended with the others, whatever happens
                twins.append(twin.launch("--set", f"site.run_dir={twin.run_dir.name}",
                                         "--set", f"gateway.listen={federation.network}.{host}:{PORT}"))
            # One finds the other at its own address. The other is refused, which nobody can check: it may try again.
            found, refused = twins
            self.assertEqual(found.wait(90), BAD_USAGE, found.output())
            refused.wait_for_event("gateway_failed", 90)
            wait_until(lambda: "ended with exit code 4" in refused.output(), 30, refused.output)
            for twin in twins:
                self.assertIn("another live process", twin.output())
                self.assertEqual(twin.events("step_applied"), [])
            self.assertTrue(federation["alpha"].events("duplicate_identity"), "alpha does not report it")
            for site in (federation["alpha"], federation["beta"]):
                applied = len(site.events("step_applied"))
                site.wait_for_event("step_applied", count=applied + 2)

    def test_a_truncated_checkpoint_is_noticed_and_the_run_goes_on(self):
        with Federation("alpha", "beta", outer_steps=40) as federation:
            alpha, beta = federation.sites
            federation.launch()
            alpha.wait_for_event("step_applied", count=3)
            for site in federation.sites:
                site.interrupt()
            for site in federation.sites:
                self.assertEqual(site.wait(30), STOPPED, site.output())
            newest = sorted(p for p in (alpha.run_dir / "checkpoints").iterdir() if p.name.startswith("step_"))[-1]
            model = newest / "model.safetensors"
            model.write_bytes(model.read_bytes()[:-100])

            result = isthmus("eval", "--checkpoint", newest, alpha.file, cwd=federation.folder)
            self.assertNotEqual(result.returncode, DONE)
            self.assertIn("model.safetensors", result.stdout)

            federation.launch()
            federation.wait()
            self.assertTrue(any("damaged" in e["event"] for e in alpha.events()), "no event names the damage")
            self.assertTrue((newest.parent / (newest.name + ".damaged")).exists(), "the damaged one is kept aside")


if __name__ == "__main__":
    unittest.main()
