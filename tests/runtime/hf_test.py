#!/usr/bin/env python3
"""Our checkpoints in Hugging Face transformers, and theirs in ours: the same files, the same scores.

    ISTHMUS_PYTHON=/path/to/python hf_test.py HF_LOGITS_PROGRAM

Needs torch and transformers, from the interpreter that ISTHMUS_PYTHON names (this one if unset); skips loudly without.
"""
import itertools
import json
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

try:
    import peft
except ImportError:
    peft = None

PROGRAM = sys.argv.pop()
TOKENS = [0, 255, 10, 104, 105, 32, 195, 164, 66, 7, 200, 99, 1, 128, 250, 33, 90, 12, 12, 12, 12, 65, 111]
WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe")
CASES = ("grouped", "untied", "wide_heads", "llama3", "linear", "yarn", "qwen3", "qwen3_yarn", "bert", *WITH_EXPERTS)
CLASSES = {"bert": "BertForMaskedLM", "mixtral": "MixtralForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
           "qwen3_moe": "Qwen3MoeForCausalLM", "qwen3": "Qwen3ForCausalLM",
           "": "LlamaForCausalLM"}  # of the first prefix of a case's name
# Small, and unlike every default.
TINY = {"Llama": dict(vocab_size=256, hidden_size=48, intermediate_size=56, num_hidden_layers=2, num_attention_heads=6,
                      num_key_value_heads=2, head_dim=8, max_position_embeddings=256)}
TINY["Bert"] = {key: TINY["Llama"][key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                                   "num_attention_heads", "max_position_embeddings")}
TINY["Qwen3"] = TINY["Llama"] | dict(hidden_size=44)
TINY["Mixtral"] = TINY["Qwen3"] | dict(num_local_experts=5, num_experts_per_tok=2)
TINY["Qwen2Moe"] = TINY["Llama"] | dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20,
                                         shared_expert_intermediate_size=28)
TINY["Qwen3Moe"] = TINY["Qwen3"] | dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
COMMON = dict(
    vocab_size=300, hidden_size=96, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=3,
    head_dim=12, hidden_act="gelu", max_position_embeddings=64, initializer_range=0.5, rms_norm_eps=1e-2, use_cache=False,
    pad_token_id=3, bos_token_id=4, eos_token_id=5, tie_word_embeddings=True, attention_bias=True, attention_dropout=0.1,
    rope_parameters=LLAMA3, rope_theta=12345.0, rope_scaling=LLAMA3, dtype="bfloat16", torch_dtype="float16",
    architectures=["SomeModel"], model_type="mistral", chunk_size_feed_forward=2, id2label={0: "a"}, label2id={"a": 0},
    is_encoder_decoder=True, output_hidden_states=True, problem_type="regression",
    transformers_version="4.30.0", _name_or_path="some/where", partial_rotary_factor=0.5)
EXPERTS = dict(num_experts_per_tok=3, output_router_logits=True, router_aux_loss_coef=0.1, sliding_window=8)
FIELDS = {"Llama": COMMON | dict(mlp_bias=True, pretraining_tp=2),
          "Qwen3": COMMON | dict(use_sliding_window=dict(use_sliding_window=True, sliding_window=8, max_window_layers=1),
                                 sliding_window=8, max_window_layers=1, layer_types=["full_attention", "sliding_attention"]),
          "Mixtral": COMMON | EXPERTS | dict(num_local_experts=7, router_jitter_noise=0.1),
          "Qwen3Moe": COMMON | EXPERTS | dict(use_sliding_window=dict(use_sliding_window=True, sliding_window=8),
                                              num_experts=7, num_local_experts=dict(num_local_experts=7, num_experts=7),
                                              moe_intermediate_size=24, norm_topk_prob=True, decoder_sparse_step=2,
                                              mlp_only_layers=[1])}
FIELDS["Qwen2Moe"] = FIELDS["Qwen3Moe"] | dict(qkv_bias=False, shared_expert_intermediate_size=36, max_window_layers=1,
                                              layer_types=["full_attention", "sliding_attention"])
NOT_OF_BERT = ("num_key_value_heads", "head_dim", "rms_norm_eps", "attention_bias", "attention_dropout", "rope_parameters",
               "rope_theta", "rope_scaling", "partial_rotary_factor")
FIELDS["Bert"] = {key: value for key, value in COMMON.items() if key not in NOT_OF_BERT} | dict(
    hidden_act="relu", layer_norm_eps=1e-2, type_vocab_size=5, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.4,
    classifier_dropout=0.2, chunk_size_feed_forward=len(TOKENS), is_decoder=True, add_cross_attention=dict(is_decoder=True, add_cross_attention=True),
    position_embedding_type="relative_key", tie_word_embeddings=False)
OLDER_FIELDS = {"Qwen2Moe": ("rope_theta", "rope_scaling", "torch_dtype"),
                "Bert": ("torch_dtype", "position_embedding_type"),
                "Llama": ("rope_theta", "rope_scaling", "torch_dtype", "partial_rotary_factor"),
                "Qwen3": ("rope_theta", "rope_scaling", "torch_dtype"),
                "Mixtral": ("rope_theta", "rope_scaling", "torch_dtype"),
                "Qwen3Moe": ("rope_theta", "rope_scaling", "torch_dtype", "num_experts")}
WHOLE_VALUES = ("rope_parameters", "rope_scaling", "id2label", "label2id")
IGNORED_BY_THEM = {"return_dict", "output_attentions"}  # of a call: their own models fail with it in a file
# What people have in their models.
MUST_WORK = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
             "rope_parameters", "rope_theta", "rope_scaling", "dtype", "torch_dtype", "pad_token_id", "bos_token_id",
             "eos_token_id", "use_cache", "transformers_version", "_name_or_path", "num_experts_per_tok",
             "num_local_experts", "num_experts", "moe_intermediate_size", "norm_topk_prob", "mlp_only_layers",
             "shared_expert_intermediate_size",
             "decoder_sparse_step", "router_aux_loss_coef", "output_router_logits", "layer_norm_eps", "type_vocab_size",
             "hidden_dropout_prob", "attention_probs_dropout_prob")
MAY_BE_REFUSED = {("Bert", "tie_word_embeddings")}  # all have the head that is the embedding


def class_of(family):
    return getattr(transformers, family + ("ForMaskedLM" if family == "Bert" else "ForCausalLM"))


def run(*arguments, text=""):
    return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True, check=True).stdout


def our_scores(folder):
    lines = run("scores", folder, text=" ".join(map(str, TOKENS))).splitlines()
    return torch.tensor([[float(x) for x in line.split()] for line in lines], dtype=torch.float64)


def load(folder):
    with open(os.path.join(folder, "config.json")) as file:
        is_bert = json.load(file)["model_type"] == "bert"
    auto = transformers.AutoModelForMaskedLM if is_bert else transformers.AutoModelForCausalLM
    eager = {} if is_bert else dict(experts_implementation="eager")  # can do fp64
    model, report = auto.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **eager)
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
        for case in CASES:
            with self.subTest(case), tempfile.TemporaryDirectory() as folder:
                checkpoint = run("make", case, folder).strip()
                model = load(checkpoint)
                prefix = next(prefix for prefix in CLASSES if case.startswith(prefix))
                self.assertEqual(type(model).__name__, CLASSES[prefix])
                self.assert_equal_scores(our_scores(checkpoint), their_scores(model))

    def test_their_checkpoints_load_as_they_are(self):
        for case, dtype in zip(CASES, itertools.cycle((torch.float32, torch.bfloat16, torch.float16))):
            with self.subTest(case), tempfile.TemporaryDirectory() as folder:
                model = load(run("make", case, folder).strip()).to(dtype)
                saved = os.path.join(folder, "saved")
                model.save_pretrained(saved)
                self.assert_equal_scores(our_scores(saved), their_scores(load(saved)))

    def test_their_sharded_checkpoints_load_as_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            model = load(run("make", "untied", folder).strip())
            saved = os.path.join(folder, "saved")
            model.save_pretrained(saved, max_shard_size="100KB")
            self.assertGreater(len([name for name in os.listdir(saved) if name.startswith("model-")]), 2)
            self.assert_equal_scores(our_scores(saved), their_scores(load(saved)))

    @unittest.skipIf(peft is None, "peft is not installed")
    def test_adapters_load_as_they_are_in_peft_and_here(self):
        for case in CASES:
            with self.subTest(case), tempfile.TemporaryDirectory() as folder:
                if case in ("mixtral", "qwen3_moe"):
                    self.skipTest("adapters of ours are of attention and dense layers, not of experts that are chosen")
                base = run("make", case, folder).strip()
                ours = run("adapt", base, os.path.join(folder, "adapted")).strip()
                theirs = peft.PeftModel.from_pretrained(load(base), ours)
                self.assert_equal_scores(our_scores(ours), their_scores(theirs.eval()))
                self.assertGreater((our_scores(ours) - our_scores(base)).norm() / our_scores(base).norm(), 0.05)

                targets = ["key", "dense"] if case == "bert" else ["k_proj", "o_proj", "down_proj"]
                config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, init_lora_weights=False,
                                         task_type=None if case == "bert" else "CAUSAL_LM", lora_dropout=0.1)
                model = load(base)
                model.name_or_path = model.config._name_or_path = base
                theirs = peft.get_peft_model(model, config)
                saved = os.path.join(folder, "saved")
                theirs.save_pretrained(saved)
                self.assert_equal_scores(our_scores(saved), their_scores(theirs.eval()))
                self.assertGreater((our_scores(saved) - our_scores(base)).norm() / our_scores(base).norm(), 0.05)

    def test_greedy_continuations_are_theirs(self):
        prompts, count = [TOKENS, TOKENS[:1], TOKENS[3:15]], 40
        for case in CASES:
            with self.subTest(case), tempfile.TemporaryDirectory() as folder:
                checkpoint = run("make", case, folder).strip()
                if case == "bert":
                    refusal = subprocess.run([PROGRAM, "greedy", checkpoint, "3"], input="1 2", capture_output=True, text=True)
                    self.assertIn("continues no text", refusal.stderr)
                    continue
                text = "\n".join(" ".join(map(str, prompt)) for prompt in prompts)
                lines = run("greedy", checkpoint, str(count), text=text).splitlines()
                ours = [[int(word) for word in line.split()] for line in lines]
                model = load(checkpoint).double()
                model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
                for prompt, more in zip(prompts, ours, strict=True):
                    theirs = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count)[0, len(prompt):]
                    self.assertEqual(more, theirs.tolist())
                self.assertGreater(len({token for more in ours for token in more}), 3, "continuations that say nothing")

    def test_each_field_of_a_configuration_gives_their_scores_or_is_refused_by_name(self):
        for family, fields in FIELDS.items():
            config_class = getattr(transformers, family + "Config")
            known = set(config_class().to_dict()) | set(OLDER_FIELDS[family])
            self.assertEqual(known - set(fields) - IGNORED_BY_THEM, set(), f"{family}: fields without a value to try")
            for field, value in fields.items():
                with self.subTest(f"{family}.{field}"), tempfile.TemporaryDirectory() as folder:
                    self.assert_same_or_refused(config_class, family, folder, field, value)

    def assert_same_or_refused(self, config_class, family, folder, field, value):
        values = TINY[family] | (value if isinstance(value, dict) and field not in WHOLE_VALUES else {field: value})
        torch.manual_seed(3)
        eager = {} if family == "Bert" else dict(experts_implementation="eager")
        config = config_class(**values, attn_implementation="eager", **eager)
        model = class_of(family)(config).double().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_((parameter * 8 if parameter.dim() > 1 else torch.rand_like(parameter) + 0.5).float())
        model.float().save_pretrained(folder)
        path = os.path.join(folder, "config.json")
        with open(path) as file:
            written = json.load(file)
        with open(path, "w") as file:  # as it was given, whatever they make of it
            json.dump(written | {key: values[key] for key in values}, file)
        ours = subprocess.run([PROGRAM, "scores", folder], input=" ".join(map(str, TOKENS)), capture_output=True, text=True)
        if ours.returncode != 0:
            self.assertIn(field, ours.stderr)
            self.assertTrue(field not in MUST_WORK or (family, field) in MAY_BE_REFUSED, ours.stderr)
            return
        scores = torch.tensor([[float(x) for x in line.split()] for line in ours.stdout.splitlines()], dtype=torch.float64)
        self.assert_equal_scores(scores, their_scores(load(folder)))

    def test_special_tokens_are_known(self):
        with tempfile.TemporaryDirectory() as folder:
            config = load(run("make", "grouped", folder).strip()).config
            self.assertEqual((config.bos_token_id, config.eos_token_id, config.pad_token_id), (256, 257, 258))


if __name__ == "__main__":
    unittest.main()
