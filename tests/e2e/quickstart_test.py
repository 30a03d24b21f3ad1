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

from federation import BAD_USAGE, Case, DONE, ISTHMUS, ROOT, STOPPED, wait_until

# A model that learns something in a second.
SMALL = {"model.layers": 1, "model.hidden": 64, "model.ffn": 96, "train.sequence": 64, "train.learning_rate": 0.01}


class Quickstart(Case):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-e2e-"))
        network = random.SystemRandom().randrange(1 << 16, 1 << 24)
        self.host = f"127.{network >> 16}.{network >> 8 & 255}.9"

    def tearDown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *arguments, **sync):
        values = {**SMALL, **{f"sync.{key}": value for key, value in sync.items()}}
        sets = [x for key, value in values.items() for x in ("--set", f"{key}={value}")]
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

    def report(self):
        return json.loads((self.folder / "run/report.json").read_text())

    def test_quick_with_control_from_nothing_to_a_report(self):
        self.start("--quick", "--control")
        self.finish()
        said = self.said()
        for site in ("alpha", "beta"):
            for step in range(1, 7):
                self.assertIn(f"{site} outer step {step}/6", said)
        self.assertIn("bits per byte", said)
        report = self.report()
        alpha, beta = report["sites"]
        self.assertEqual((alpha["site"], beta["site"]), ("alpha", "beta"))
        self.assertEqual(list(alpha["held_out"]), ["en", "de", "fr", "ja"])
        for site in (alpha, beta):
            for language, held_out in site["held_out"].items():
                # Nothing learnt is log2(260) = 8.02; letters as frequent as they are, about 5.
                before, after = held_out["bits_per_byte_before"], held_out["bits_per_byte_after"]
                self.assertGreater(before, 7.5, (site["site"], language))
                self.assertLess(after, 5.0, (site["site"], language))
        self.assertEqual(json.dumps(alpha["held_out"]), json.dumps(beta["held_out"]), "both sites end equal")

        # What alpha never saw, it does not know; of its own text it has seen as much.
        control, = report["controls"]
        better = {language: control["held_out"][language]["bits_per_byte_after"] - held_out["bits_per_byte_after"]
                  for language, held_out in alpha["held_out"].items()}
        self.assertGreater(better["fr"], 0.05, better)
        self.assertGreater(better["ja"], 1.0, better)
        for language in ("en", "de"):
            self.assertLess(abs(better[language]), 0.3, better)

        # Once more: the run is complete and stays as it is.
        self.start("--quick")
        self.finish()
        self.assertEqual(json.dumps(self.report()["sites"][0]["held_out"]), json.dumps(alpha["held_out"]))

    def test_mistakes_are_told_before_anything_is_built_or_made(self):
        (self.folder / "file").touch()
        for says, *arguments in (("neither a name nor an address", "--host", "127.0.0.1:7000"),
                                 ("neither a name nor an address", "--host", "a|b"),
                                 ("neither a name nor an address", "--host", "::1"),
                                 ("write it as SECTION.KEY=VALUE", "--set", "outer_steps"),
                                 ("write it as SECTION.KEY=VALUE", "--set", "outer_steps=0.5"),
                                 ("(Not a directory): name another folder", "--folder", self.folder / "file/run")):
            said = subprocess.run([ROOT / "tools/quickstart", "--folder", self.folder / "run", *arguments],
                                  capture_output=True, text=True, env={**os.environ, "ISTHMUS": "/bin/false"})
            self.assertEqual((said.returncode, said.stdout), (BAD_USAGE, ""), (arguments, said.stderr))
            self.assertIn(says, said.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["file"])

    def test_interrupted_it_ends_cleanly_goes_on_and_starts_over(self):
        self.start(inner_steps=2, outer_steps=400)
        wait_until(lambda: "outer step 3/" in self.said(), 60, self.said)
        self.process.send_signal(signal.SIGINT)
        self.finish(STOPPED)
        self.assertIn("stopped, with a checkpoint", self.said())
        self.assertNotIn("stopped at once", self.said())
        reached = max(int(p.name[5:]) for p in (self.folder / "run/alpha/checkpoints").glob("step_*"))
        self.assertGreater(reached, 0)

        self.start(inner_steps=2, outer_steps=400)
        wait_until(lambda: f"outer step {reached // 2 + 3}/" in self.said(), 60, self.said)
        self.process.send_signal(signal.SIGINT)
        self.finish(STOPPED)
        for site in ("alpha", "beta"):
            self.assertNotIn("tokens_lost", (self.folder / f"run/{site}/events.jsonl").read_text())

        self.start("--fresh", inner_steps=10, outer_steps=2)
        self.finish()
        self.assertIn("outer step 2/2", self.said())


if __name__ == "__main__":
    unittest.main()
