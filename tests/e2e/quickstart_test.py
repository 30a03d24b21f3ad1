#!/usr/bin/env python3
"""tools/quickstart as a user runs it, with a smaller model: to its end, interrupted, continued, and afresh."""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import unittest

from federation import Case, DONE, ISTHMUS, ROOT, STOPPED, wait_until

SMALL = {"model.layers": 1, "model.hidden": 32, "model.ffn": 48, "train.micro_batch": 2, "train.sequence": 64,
         "train.warmup_steps": 2, "sync.inner_steps": 2}


class Quickstart(Case):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-e2e-"))
        network = random.SystemRandom().randrange(1 << 16, 1 << 24)
        self.host = f"127.{network >> 16}.{network >> 8 & 255}.9"

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *arguments, outer_steps):
        sets = [x for key, value in {**SMALL, "sync.outer_steps": outer_steps}.items()
                for x in ("--set", f"{key}={value}")]
        self.output = self.folder / "output"
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                [ROOT / "tools/quickstart", "--folder", self.folder / "run", "--host", self.host, *sets, *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "ISTHMUS": ISTHMUS, "CI": "true"})
        return self.process

    def said(self):
        return self.output.read_text(errors="replace")

    def finish(self, code=DONE):
        self.assertEqual(self.process.wait(60), code, self.said())
        self.assertEqual(self.left_over(), [], "processes are left")

    def left_over(self):
        """Processes that have this run's folder on their command line."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.folder / "run").encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
        return found

    def test_from_nothing_to_a_report(self):
        self.start("--control", outer_steps=3)
        self.finish()
        said = self.said()
        for site in ("alpha", "beta"):
            for step in (1, 2, 3):
                self.assertIn(f"{site} outer step {step}/3", said)
        self.assertIn("bits per byte", said)
        report = json.loads((self.folder / "run/report.json").read_text())
        alpha, beta = report["sites"]
        self.assertEqual((alpha["site"], beta["site"]), ("alpha", "beta"))
        self.assertEqual(json.dumps(alpha["held_out"]), json.dumps(beta["held_out"]), "both sites end equal")
        self.assertEqual(len(report["controls"]), 1)

        # Once more: the run is complete and stays as it is.
        self.start(outer_steps=3)
        self.finish()
        again = json.loads((self.folder / "run/report.json").read_text())
        self.assertEqual(json.dumps(again["sites"][0]["held_out"]), json.dumps(alpha["held_out"]))

    def test_interrupted_it_ends_cleanly_goes_on_and_starts_over(self):
        self.start(outer_steps=400)
        wait_until(lambda: "outer step 3/" in self.said(), 60, self.said)
        self.process.send_signal(signal.SIGINT)
        self.finish(STOPPED)
        self.assertIn("stopped, with a checkpoint", self.said())
        reached = max(int(p.name[5:]) for p in (self.folder / "run/alpha/checkpoints").glob("step_*"))
        self.assertGreater(reached, 0)

        self.start(outer_steps=400)
        wait_until(lambda: f"outer step {reached // 2 + 3}/" in self.said(), 60, self.said)
        self.process.send_signal(signal.SIGINT)
        self.finish(STOPPED)

        self.start("--fresh", outer_steps=2)
        self.finish()
        self.assertIn("outer step 2/2", self.said())


if __name__ == "__main__":
    unittest.main()
