#!/usr/bin/env python3
"""Sites that train an encoder, which predicts hidden tokens."""
import json
import re
import unittest

import outer_files
from federation import BAD_USAGE, Case, Federation, isthmus, wait_until

OUTER_STEPS = 3
ENCODER = """[model]
family = "bert"
layers = 1
hidden = 32
heads = 4
ffn = 48
context = 64
dropout = 0.1
attention_dropout = 0.1

[masking]
share = 0.2
"""


class Encoder(Case):
    def encoders(self, federation):
        for site in federation.sites:
            text = site.file.read_text()
            site.file.write_text(re.sub(r"\[model\].*?(?=\[data\])", ENCODER + "\n", text, flags=re.S))

    def refused(self, federation, *arguments, code=BAD_USAGE):
        result = isthmus(*arguments, cwd=federation.folder)
        self.assertEqual(result.returncode, code, result.stdout)
        return result.stdout

    def test_sites_agree_go_on_and_judge_by_hidden_tokens(self):
        with Federation("alpha", "beta", outer_steps=OUTER_STEPS) as federation:
            self.encoders(federation)
            self.assertIn("20 % of them hidden", federation.run("check", "alpha.toml"))
            federation.launch()
            federation["beta"].wait_for_event("step_applied")
            federation["beta"].kill_tree()
            federation["beta"].launch()
            federation.wait()
            states = [outer_files.Site(site.run_dir).states()[0] for site in federation.sites]
            self.assertEqual([state.step for state in states], [OUTER_STEPS] * 2)
            self.assertEqual(len({state.claimed_root for state in states}), 1)

            loss = json.loads(federation.run("eval", "alpha.toml", "--json"))
            self.assertEqual(json.loads(federation.run("eval", "alpha.toml", "--json")), loss)
            self.assertIn("hidden", federation.run("eval", "alpha.toml"))
            self.assertIn("continues no text", self.refused(federation, "generate", "alpha.toml", "--prompt", "a"))

            federation.run("export", "alpha.toml", "--to", "exported")
            config = json.loads((federation.folder / "exported" / "config.json").read_text())
            self.assertEqual(config["architectures"], ["BertForMaskedLM"])
            self.assertEqual(config["hidden_dropout_prob"], 0.1)
            self.assertEqual(json.loads(federation.run("eval", "alpha.toml", "--checkpoint", "exported", "--json"))["held_out"],
                             loss["held_out"])

    def test_sites_that_hide_otherwise_refuse_each_other(self):
        with Federation("alpha", "beta", outer_steps=OUTER_STEPS) as federation:
            self.encoders(federation)
            beta = federation["beta"].file
            beta.write_text(beta.read_text().replace("share = 0.2", "share = 0.3"))
            federation.launch()
            refusals = wait_until(lambda: [e for e in federation["alpha"].events()
                                           if e["event"] in ("session_refused", "session_refused_by_peer")], 60,
                                  federation["alpha"].output)
            self.assertIn("hides 0.", refusals[0]["why"])

    def test_what_does_not_fit_is_named(self):
        with Federation("alpha", outer_steps=OUTER_STEPS) as federation:
            self.encoders(federation)
            for setting, named in (("masking.token=300", "300"), ("model.vocabulary=256", "vocabulary"),
                                   ("model.rope_theta=5000", "rope_theta"), ("model.kv_heads=2", "kv_heads"),
                                   ("model.heads=5", "heads"), ("model.dropout=0.95", "dropout"),
                                   ("masking.share=0", "masking.share"), ("model.experts=4", "experts"),
                                   ("train.sequence=65", "train.sequence")):
                with self.subTest(setting):
                    self.assertIn(named, self.refused(federation, "check", "alpha.toml", "--set", setting))
            file = federation["alpha"].file
            file.write_text(file.read_text().replace('family = "bert"', 'family = "llama"'))
            text = self.refused(federation, "check", "alpha.toml")
            for key in ("masking", "model.dropout", "model.attention_dropout"):
                self.assertIn(key, text)


if __name__ == "__main__":
    unittest.main()
