#!/usr/bin/env python3
"""Many simulated seeds: failing ones are shrunk and replayed, what a kill interrupted goes on, mistakes are named."""
import fcntl
import os
import pathlib
import pty
import re
import shlex
import signal
import subprocess
import tempfile
import time
import unittest

from federation import BAD_USAGE, Case, DONE, FAILED, HOPELESS, ISTHMUS, STOPPED, UNAVAILABLE, isthmus

BUG = 'from = "crashes"\nbug = "lying_disk"\n'


class Storm(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="isthmus-e2e-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_it(self, *arguments, code=DONE):
        result = isthmus("simulate", *arguments, cwd=self.folder)
        self.assertEqual(result.returncode, code, f"{arguments}: {result.stdout}")
        return result.stdout

    def seeds(self, path):
        lines = (self.folder / path).read_text().splitlines()[1:]
        return [int(line.split()[0]) for line in lines]

    def test_a_failing_seed_is_shrunk_and_its_command_replays_it(self):
        (self.folder / "a bug.toml").write_text(BUG)
        said = self.run_it("a bug.toml", "--seeds", "12", "--resume", "bug.seeds", code=FAILED)
        failed = re.findall(r"^seed (\d+): \[.*", said, re.M)
        self.assertTrue(failed, said)
        shrunk = re.findall(r"shrunk from (\d+) faults? to (\d+)", said)
        self.assertTrue(any(int(after) < int(before) for before, after in shrunk), said)
        replays = re.findall(r"replay: isthmus simulate (.*)", said)
        self.assertEqual(len(replays), len(set(failed)))
        for replay in replays[:3]:
            again = self.run_it(*shlex.split(replay), code=FAILED)
            violated = re.search(r"VIOLATED: (.*)", again).group(1)
            self.assertIn(violated, said)
            faults = re.search(r"--faults (\S+)", replay).group(1)
            listed = re.findall(r"^ +(\d+)  (?:at|when) ", again, re.M)
            self.assertEqual(",".join(listed) or "none", faults)
        # The whole run of one of them, shrunk by hand.
        seed = re.search(r"--seed (\d+)", replays[0]).group(1)
        alone = self.run_it("a bug.toml", "--seed", seed, "--shrink", code=FAILED)
        self.assertIn(replays[0], alone)

    def test_goes_on_after_kill_9(self):
        command = [ISTHMUS, "simulate", "--storm", "--seeds", "40", "--cpus", "2", "--resume", "s"]
        killed = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for_seeds(killed, 5)
        killed.kill()
        killed.wait()
        before = self.seeds("s")
        self.assertLess(len(before), 40)
        said = self.run_it("--storm", "--seeds", "40", "--resume", "s")
        self.assertIn("40 of 40 done, 0 failed", said)
        after = self.seeds("s")
        self.assertEqual(after[:len(before)], before)
        self.assertEqual(sorted(after), list(range(1, 41)))
        # More of the same are only what is new; and none of them is nothing.
        self.run_it("--storm", "--seeds", "42", "--resume", "s")
        self.assertEqual(self.seeds("s")[:40], after)
        self.run_it("--storm", "--seeds", "42", "--resume", "s")
        self.assertEqual(len(self.seeds("s")), 42)

    def wait_for_seeds(self, process, count, path="s"):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.assertIsNone(process.poll())
            if (self.folder / path).exists() and len(self.seeds(path)) >= count:
                return
            time.sleep(0.02)
        self.fail("no seeds are done")

    def test_ctrl_c_on_a_terminal_with_a_progress_bar(self):
        parent, child = pty.openpty()
        command = [ISTHMUS, "simulate", "--storm", "--seeds", "5000", "--resume", "s"]
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=child, text=True)
        os.close(child)
        self.wait_for_seeds(process, 5)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
        drawn = os.read(parent, 1 << 16).decode()
        os.close(parent)
        self.assertEqual(process.returncode, STOPPED, said)
        self.assertIn("stopped; the same command goes on from here", said)
        self.assertRegex(drawn, r"\r\[#*-+\] \d+ of 5000 seeds, [\d.]+/s, .* left")

    def test_one_seed_twice_is_one_run_on_any_number_of_cpus(self):
        for cpus in ("1", "3"):
            self.run_it("--storm", "--seeds", "12", "--cpus", cpus, "--resume", cpus)
        one, three = (sorted((self.folder / cpus).read_text().splitlines()) for cpus in ("1", "3"))
        self.assertEqual(one, three)

    def test_mistakes_are_named(self):
        for arguments, said in (
            ((), "name a SCENARIO, or --storm"),
            (("storm", "--storm"), "it takes no SCENARIO beside it"),
            (("--storm", "--seeds", "0"), "--seeds"),
            (("--storm", "--seeds", "many"), "--seeds"),
            (("--storm", "--seeds", "5", "--seed", "1"), "--seed"),
            (("--storm", "--seeds", "5", "--faults", "1"), "--faults"),
            (("--storm", "--cpus", "2"), "--cpus"),
            (("--storm", "--resume", "x"), "--resume"),
            (("--storm", "--seed", "1", "--faults", "1,x"), "as 3,9,12"),
            (("--storm", "--seed", "1", "--faults", "99999"), "counted from 0"),
            (("calm", "--sites", "4"), "this run has 3 sites"),
        ):
            self.assertIn(said, self.run_it(*arguments, code=BAD_USAGE))
        self.assertIn("there is no folder no/such", self.run_it("--storm", "--seeds", "3", "--resume", "no/such/x", code=BAD_USAGE))
        (self.folder / "other").write_text("isthmus seeds 1 another\n")
        self.assertIn("another build", self.run_it("--storm", "--seeds", "3", "--resume", "other", code=BAD_USAGE))
        (self.folder / "notes").write_text("not mine\n")
        self.assertIn("name another file with --resume", self.run_it("--storm", "--seeds", "3", "--resume", "notes", code=HOPELESS))
        with open(self.folder / "held.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("another isthmus simulate adds to held",
                          self.run_it("--storm", "--seeds", "3", "--resume", "held", code=UNAVAILABLE))


if __name__ == "__main__":
    unittest.main()
