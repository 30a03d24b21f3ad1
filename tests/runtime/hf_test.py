#!/usr/bin/env python3
"""Our checkpoints in Hugging Face transformers, and theirs in ours: the same files, the same scores.

    ISTHMUS_PYTHON=/path/to/python hf_test.py HF_LOGITS_PROGRAM

Needs torch and transformers, from the interpreter that ISTHMUS_PYTHON names (this one if unset); skips loudly without.
"""
import os
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77  # ctest: SKIP_RETURN_CODE

if os.environ.get("ISTHMUS_PYTHON") and not os.environ.get("ISTHMUS_PYTHON_RUNS"):
    os.environ["ISTHMUS_PYTHON_RUNS"] = "1"
    os.execv(os.environ["ISTHMUS_PYTHON"], [os.environ["ISTHMUS_PYTHON"], *sys.argv])

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
except ImportError as missing:
    print(f"SKIPPED: {missing}. Set ISTHMUS_PYTHON to a Python that has torch and transformers.")
    sys.exit(SKIPPED)

PROGRAM = sys.argv.pop()
TOKENS = [0, 255, 10, 104, 105, 32, 195, 164, 66, 7, 200, 99, 1, 128, 250, 33, 90, 12, 12, 12, 12, 65, 111]


def run(*arguments, text=""):
    return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True, check=True).stdout


def our_scores(folder):
    lines = run("scores", folder, text=" ".join(map(str, TOKENS))).splitlines()
    return torch.tensor([[float(x) for x in line.split()] for line in lines], dtype=torch.float64)


def load(folder):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


@torch.no_grad()
def their_scores(model):
    return model.double()(torch.tensor([TOKENS])).logits[0]


class HuggingFace(unittest.TestCase):
    def assert_equal_scores(self, ours, theirs):
        self.assertEqual(ours.shape, theirs.shape)
        self.assertGreater(theirs.std().item(), 0.5, "scores that say nothing")
        self.assertLess(((ours - theirs).norm() / theirs.norm()).item(), 1e-5)

    def test_our_checkpoints_load_as_they_are(self):
        for case in ("grouped", "untied", "wide_heads"):
            with self.subTest(case), tempfile.TemporaryDirectory() as folder:
                checkpoint = run("make", case, folder).strip()
                model = load(checkpoint)
                self.assertEqual(type(model).__name__, "LlamaForCausalLM")
                self.assert_equal_scores(our_scores(checkpoint), their_scores(model))

    def test_their_checkpoints_load_as_they_are(self):
        for case, dtype in (("grouped", torch.float32), ("untied", torch.bfloat16), ("wide_heads", torch.float16)):
            with self.subTest(case), tempfile.TemporaryDirectory() as folder:
                model = load(run("make", case, folder).strip()).to(dtype)
                saved = os.path.join(folder, "saved")
                model.save_pretrained(saved)
                self.assert_equal_scores(our_scores(saved), their_scores(load(saved)))

    def test_special_tokens_are_known(self):
        with tempfile.TemporaryDirectory() as folder:
            config = load(run("make", "grouped", folder).strip()).config
            self.assertEqual((config.bos_token_id, config.eos_token_id, config.pad_token_id), (256, 257, 258))


if __name__ == "__main__":
    unittest.main()
