#!/usr/bin/env python3
"""tools/soak itself, for some seconds: it ends with a report in which everything holds, also when it is interrupted."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

from federation import Case, DONE, FAILED, ROOT, wait_until

SOAK = ROOT / "tools/soak"


class Soak(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="isthmus-e2e-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *arguments):
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        return subprocess.Popen([SOAK, "--loopback", "--json", self.folder / "report", *map(str, arguments)], text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)

    def end(self, process):
        said, _ = process.communicate(timeout=100)
        self.assertEqual(process.returncode, DONE, said)
        self.assertIn("every invariant holds", said)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["report"], "something of it is left")
        report = json.loads((self.folder / "report").read_text())
        self.assertEqual(report["violations"], [])
        self.assertGreater(report["outer_steps"], 3)
        return report

    def test_to_its_end(self):
        report = self.end(self.start("--minutes", 0.2, "--seed", 1))
        self.assertGreater(sum(report["faults"].values()), 0)
        self.assertEqual(len(report["stalls"]), report["rounds"])
        self.assertEqual(sorted(report["tokens"]), ["alpha", "beta", "gamma"])
        self.assertFalse(report["stopped"])

    def test_no_time_for_faults(self):
        report = self.end(self.start("--minutes", 0.0001))
        self.assertEqual(report["rounds"], 0)

    def test_interrupted(self):
        process = self.start("--minutes", 60)
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        report = self.end(process)
        self.assertTrue(report["stopped"])
        self.assertLess(report["seconds"], 60)

    def test_broken_off(self):
        process = self.start("--minutes", 60, "--keep", self.folder / "kept")
        events = wait_until(lambda: next(self.folder.glob("isthmus-e2e-*/alpha/events.jsonl"), None), 60, "no events")
        events.unlink()
        events.mkdir()  # so that the soak sees nothing of what happens
        said, _ = process.communicate(timeout=100)
        self.assertEqual(process.returncode, FAILED, said)
        self.assertIn("BROKEN OFF", said)
        self.assertNotIn("every invariant holds", said)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["kept", "report"])
        self.assertIn("IsADirectoryError", json.loads((self.folder / "report").read_text())["broken_off"][0])
        self.assertTrue((self.folder / "kept/alpha.launch-1.log").exists())

    def test_a_mistake(self):
        for says, *arguments in (("there can be 3 to 7", "--sites", "2"),
                                 ("--sites: \"three\" is no whole number", "--sites", "three"),
                                 ("--seed: \"-1\" is no whole number from 0 to", "--seed", "-1"),
                                 ("--seed: \"1.5\" is no whole number", "--seed", "1.5"),
                                 ("--seed: \"" + "9" * 30 + "\" is no whole number", "--seed", "9" * 30),
                                 ("--first-round: \"-1\" is no whole number", "--first-round", "-1"),
                                 ("--minutes -1.0: there can be above 0 to 525600", "--minutes", "-1"),
                                 ("--minutes nan: there can be above 0", "--minutes", "nan"),
                                 ("--minutes inf: there can be above 0", "--minutes", "inf"),
                                 ("there is no folder", "--minutes", "0.01", "--keep", self.folder / "none" / "kept")):
            said = subprocess.run([SOAK, "--loopback", *arguments], capture_output=True, text=True)
            self.assertEqual(said.returncode, 2, said)
            self.assertIn(says, said.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
