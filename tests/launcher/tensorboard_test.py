#!/usr/bin/env python3
"""What a training wrote for TensorBoard, read by TensorBoard's own reader.

    ISTHMUS_PYTHON=/path/to/python tensorboard_test.py ISTHMUS_PROGRAM

Needs `tensorboard`, from the interpreter that ISTHMUS_PYTHON names (this one if unset); skips loudly without.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77  # ctest: SKIP_RETURN_CODE

if os.environ.get("ISTHMUS_PYTHON") and not os.environ.get("ISTHMUS_PYTHON_RUNS"):
    os.environ["ISTHMUS_PYTHON_RUNS"] = "1"
    os.execv(os.environ["ISTHMUS_PYTHON"], [os.environ["ISTHMUS_PYTHON"], *sys.argv])

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(f"SKIPPED: {missing}. Set ISTHMUS_PYTHON to a Python that has tensorboard.")
    sys.exit(SKIPPED)

ISTHMUS = pathlib.Path(sys.argv.pop()).resolve()

SITE = """
[site]
name = "alone"
run_dir = "run"
[model]
layers = 1
hidden = 16
heads = 2
ffn = 16
[data]
train = [{ path = "text" }]
held_out = [{ name = "held", path = "text" }]
[train]
sequence = 16
micro_batch = 2
warmup_steps = 0
threads = 1
evaluate_every = 2
tensorboard = true
[sync]
inner_steps = 2
outer_steps = 4
"""


def train(folder, *arguments):
    return subprocess.run([ISTHMUS, "train", "site.toml", "--log-format", "json", *arguments], cwd=folder, check=True,
                          capture_output=True, text=True, timeout=120)


class TensorBoard(unittest.TestCase):
    def test_shows_each_step_once(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "site.toml").write_text(SITE)
            (root / "text").write_text("the quick brown fox jumps over the lazy dog. " * 100)
            first = train(root, "--set", "sync.outer_steps=3")
            (root / "run" / "checkpoints" / "step_00000006").rename(root / "gone")  # as after a crash
            second = train(root)
            events = [json.loads(line) for run in (first, second) for line in run.stdout.splitlines()]
            last = {e["inner_step"]: e for e in events if e["event"] == "inner_step"}
            self.assertEqual(sorted(last), list(range(1, 9)))
            self.assertEqual(sum(e["event"] == "inner_step" for e in events), 10)  # 5 and 6 twice

            shown = EventAccumulator(str(root / "run" / "tensorboard"))
            shown.Reload()
            self.assertEqual(sorted(shown.Tags()["scalars"]),
                             ["held_out/held/bits_per_byte", "held_out/held/perplexity", "train/gradient_norm",
                              "train/learning_rate", "train/loss", "train/tokens_per_second"])
            for tag, field in (("train/loss", "loss"), ("train/learning_rate", "learning_rate"),
                               ("train/gradient_norm", "gradient_norm")):
                scalars = shown.Scalars(tag)
                self.assertEqual([s.step for s in scalars], list(range(1, 9)), tag)
                for scalar in scalars:
                    self.assertAlmostEqual(scalar.value, last[scalar.step][field], delta=1e-6 * abs(scalar.value))
            held = shown.Scalars("held_out/held/bits_per_byte")
            self.assertEqual([s.step for s in held], [2, 4, 6, 8])
            told = {e["inner_step"]: e["bits_per_byte"] for e in events if e["event"] == "held_out_loss"}
            for scalar in held:
                self.assertAlmostEqual(scalar.value, told[scalar.step], delta=1e-6 * scalar.value)


if __name__ == "__main__":
    unittest.main()
