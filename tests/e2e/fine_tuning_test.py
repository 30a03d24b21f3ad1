#!/usr/bin/env python3
"""Sites that train a part of a model: adapters beside a frozen one, or some of its tensors."""
import json
import re
import shutil
import unittest

import outer_files
from federation import BAD_USAGE, DONE, HOPELESS, Case, Federation, isthmus, some_text, wait_until

OUTER_STEPS = 3
LORA = '[lora]\nrank = 4\nalpha = 8\ntargets = ["q_proj", "v_proj"]'
ADAPTER_ELEMENTS = (4 * 32 + 32 * 4) + (4 * 32 + 16 * 4)  # of one layer: A and B of 32 to 32, and of 32 to 16


class FineTuning(Case):
    def base_model(self, federation, name="base", seed=1):
        """A Hugging Face directory of a small model, as somebody could have it."""
        (federation.folder / "own.txt").write_text(some_text(7))
        (federation.folder / "own.toml").write_text(f"""
[site]
name = "own"
run_dir = "own-{name}"
[model]
layers = 1
hidden = 32
heads = 4
kv_heads = 2
ffn = 48
seed = {seed}
[data]
train = [{{ path = "own.txt" }}]
[train]
micro_batch = 2
sequence = 48
[sync]
inner_steps = 2
outer_steps = 1
""")
        federation.run("launch", "own.toml")
        federation.run("export", "own.toml", "--to", name)

    def fine_tune(self, site, model):
        text = site.file.read_text()
        site.file.write_text(re.sub(r"\[model\].*?(?=\[data\])", f"[model]\n{model}\n\n", text, flags=re.S))

    def report(self, federation):
        return json.loads(federation.run("report", *(site.file.name for site in federation.sites), "--json"))["sites"]

    def test_adapters_are_all_that_is_exchanged_and_kept(self):
        with Federation("alpha", "beta", outer_steps=OUTER_STEPS) as federation:
            self.base_model(federation)
            for site in federation.sites:
                self.fine_tune(site, f'from = "base"\n{LORA}')
            self.assertIn("448 parameters train: adapters of rank 4, alpha 8 beside 2 products",
                          federation.run("check", "alpha.toml"))
            self.assertIn("of which 448 train", federation.run("plan", "alpha.toml"))
            federation.launch()
            federation.wait()
            roots = set()
            for site in federation.sites:
                reader = outer_files.Site(site.run_dir)
                state = reader.states()[0]
                self.assertEqual(state.step, OUTER_STEPS)
                roots.add(state.claimed_root)
            self.assertEqual(len(roots), 1)
            for site in self.report(federation):
                for link in site["links"].values():
                    self.assertEqual(link["parameter_bytes"], 4 * ADAPTER_ELEMENTS * OUTER_STEPS)
            checkpoints = sorted((federation["alpha"].run_dir / "checkpoints").iterdir())
            files = {path.name for path in checkpoints[-1].iterdir()}
            self.assertEqual(files, {"adapter_config.json", "adapter_model.safetensors", "config.json",
                                     "optimizer.safetensors", "trainer.json"})
            self.assertLess((checkpoints[-1] / "optimizer.safetensors").stat().st_size, 2 * 4 * ADAPTER_ELEMENTS + 3000)

            # Merged, it predicts as it did beside the base.
            loss = federation.run("eval", "alpha.toml")
            federation.run("export", "alpha.toml", "--to", "merged")
            self.assertEqual(federation.run("eval", "alpha.toml", "--checkpoint", "merged"), loss)
            self.assertNotEqual(federation.run("eval", "alpha.toml", "--initial"), loss)
            self.assertEqual(federation.run("eval", "alpha.toml", "--checkpoint", "base"),
                             federation.run("eval", "alpha.toml", "--initial"))

            # A new run begins with it, and with nothing else.
            further = f'{LORA}\nfrom = "{checkpoints[-1]}"'
            for site in federation.sites:
                self.fine_tune(site, f'from = "base"\n{further}')
            self.assertEqual(federation.run("eval", "alpha.toml", "--initial"), loss)
            self.fine_tune(federation["alpha"], f'from = "base"\n{further.replace("rank = 4", "rank = 5")}')
            refused = isthmus("check", "alpha.toml", cwd=federation.folder)
            self.assertEqual(refused.returncode, BAD_USAGE)
            self.assertIn("this run has rank 5", refused.stdout)

    def test_sites_with_other_base_models_refuse_each_other(self):
        with Federation("alpha", "beta", outer_steps=OUTER_STEPS) as federation:
            self.base_model(federation)
            self.base_model(federation, "other", seed=2)
            for site, base in zip(federation.sites, ("base", "other")):
                self.fine_tune(site, f'from = "{base}"\n{LORA}')
            federation.launch()
            # The one that hears the other first refuses, and the other hears of it.
            refusals = wait_until(lambda: [e for e in federation["alpha"].events()
                                           if e["event"] in ("session_refused", "session_refused_by_peer")], 60,
                                  federation["alpha"].output)
            self.assertIn("frozen", refusals[0]["why"])

    def test_what_is_frozen_stays_and_is_not_exchanged(self):
        with Federation("alpha", "beta", outer_steps=OUTER_STEPS) as federation:
            for site in federation.sites:
                text = site.file.read_text()
                site.file.write_text(text.replace('precision = "f32"', 'precision = "f32"\nfreeze = ["model.embed_tokens.*"]'))
            self.assertIn("frozen", federation.run("check", "alpha.toml"))
            federation.launch()
            federation.wait()
            elements = 32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32 + 3 * 32
            for site in self.report(federation):
                for link in site["links"].values():
                    self.assertEqual(link["parameter_bytes"], 4 * elements * OUTER_STEPS)

    def test_another_base_ends_a_run_that_goes_on(self):
        with Federation("alpha", outer_steps=OUTER_STEPS) as federation:
            self.base_model(federation)
            self.base_model(federation, "other", seed=2)
            alpha = federation["alpha"]
            text = re.sub(r"(?m)^(roster|operator_key|identity|listen|min_sites|codec) = .*\n", "", alpha.file.read_text())
            alpha.file.write_text(text.replace("[gateway]", ""))
            self.fine_tune(alpha, f'from = "base"\n{LORA}')
            federation.run("launch", "alpha.toml")
            shutil.rmtree(federation.folder / "base")
            (federation.folder / "other").rename(federation.folder / "base")
            result = isthmus("launch", "alpha.toml", "--set", "sync.outer_steps=5", cwd=federation.folder)
            self.assertNotIn(result.returncode, (DONE,))
            self.assertIn("put the model of model.from back", result.stdout)


if __name__ == "__main__":
    unittest.main()
