#!/usr/bin/env python3
"""The worked example of docs/models.md, as it stands there: a Hugging Face folder fine-tuned by two sites, and taken back.

Its commands and files are read from the document. What needs transformers is run by the interpreter that ISTHMUS_PYTHON
names (this one if unset), and left out, loudly, where that has it not.
"""
import array
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from federation import ISTHMUS, ROOT, some_text

DOCUMENT = ROOT / "docs/models.md"
TOKENIZER = ROOT / "tests/runtime/tokenizer_vectors/qwen.json"
PYTHON = os.environ.get("ISTHMUS_PYTHON", sys.executable)
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 32, 4, 2, 8, 48, 2


def blocks():
    """(language, text) of each fenced block of the example."""
    example = DOCUMENT.read_text().split("### A worked example\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", example, re.M | re.S)


def write_base(folder):
    """A small random model as transformers writes one, made without it."""
    folder.mkdir()
    shutil.copy(TOKENIZER, folder / "tokenizer.json")
    tokenizer = json.loads(TOKENIZER.read_text())
    tokens = tokenizer["model"]["vocab"]
    vocabulary = len(tokens) + len(tokenizer["added_tokens"])
    words = {id for token, id in tokens.items() if re.fullmatch("Ġ?[a-z]+", token)}
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": vocabulary, "hidden_size": HIDDEN,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False, "dtype": "float32"}))
    shapes = {"model.embed_tokens.weight": (vocabulary, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,),
                   at + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
                   at + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
                   at + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
                   at + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
                   at + "self_attn.q_norm.weight": (HEAD_DIM,), at + "self_attn.k_norm.weight": (HEAD_DIM,),
                   at + "mlp.gate_proj.weight": (FFN, HIDDEN), at + "mlp.up_proj.weight": (FFN, HIDDEN),
                   at + "mlp.down_proj.weight": (HIDDEN, FFN)}
    rng, header, data = random.Random(1), {"__metadata__": {"format": "pt"}}, bytearray()
    for name, shape in shapes.items():
        elements = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [rng.gauss(0, 0.1) for _ in range(elements)] if len(shape) > 1 else [1.0] * elements
        if name == "model.embed_tokens.weight":  # nothing but words is likely, so that what it says is text
            for row in set(range(vocabulary)) - words:
                values[row * HIDDEN:(row + 1) * HIDDEN] = [0.0] * HIDDEN
        begin = len(data)
        data += array.array("f", values).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_conversations(path, seed):
    rng = random.Random(seed)
    words = some_text(seed, 600).split()
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(200):
            said = [" ".join(rng.choice(words) for _ in range(rng.randint(3, 9))) for _ in range(2)]
            file.write(json.dumps({"messages": [{"role": "user", "content": said[0]},
                                                {"role": "assistant", "content": said[1]}]}) + "\n")


class WorkedExample(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-example-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        # Addresses of its own, as others may run the example at the same time: all of 127/8 is loopback.
        self.host = "127." + ".".join(str(random.SystemRandom().randrange(1, 255)) for _ in range(3))
        write_base(self.folder / "base")
        write_conversations(self.folder / "alpha.jsonl", 1)
        write_conversations(self.folder / "beta.jsonl", 2)

    def run_block(self, text):
        environment = {**os.environ, "PATH": f"{pathlib.Path(ISTHMUS).parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", text], cwd=self.folder, env=environment, timeout=90,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, f"{text}\n{done.stdout}")
        return done.stdout

    def test_it_does_what_the_document_says(self):
        said = ""
        languages = []
        for language, text in blocks():
            languages.append(language)
            text = text.replace("127.0.0.1", self.host)
            if language == "toml":
                name = re.match(r"# (\S+)\n", text)
                (self.folder / name[1]).write_text(text)
            elif language == "console":
                said += self.run_block(text)
            else:
                self.assertEqual(language, "python")
                self.check_in_transformers(text)
        self.assertEqual(set(languages), {"toml", "console", "python"})

        # It learnt, and both have the same.
        before, after = (float(x) for x in re.findall(r"^alpha +([\d.]+) bits per byte", said, re.M))
        self.assertLess(after, before - 0.05)
        adapters = []
        for site in ("alpha", "beta"):
            newest = sorted((self.folder / "runs" / site / "checkpoints").iterdir())[-1]
            adapters.append((newest / "adapter_model.safetensors").read_bytes())
        self.assertEqual(*adapters)

    def check_in_transformers(self, program):
        has = subprocess.run([PYTHON, "-c", "import torch, transformers"], stderr=subprocess.DEVNULL, timeout=90)
        if has.returncode != 0:
            print(f"LEFT OUT: {PYTHON} has no torch and transformers. Set ISTHMUS_PYTHON to one that has.", file=sys.stderr)
            return
        def continued(prompt, text):
            done = subprocess.run([PYTHON, "-c", text], cwd=self.folder, timeout=90, text=True, check=True,
                                  env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.PIPE).stdout
            self.assertTrue(done.startswith(prompt), done)
            return done[len(prompt):].rstrip("\n")

        def ours(*options):
            return subprocess.run([ISTHMUS, "generate", "alpha.toml", "--temperature", "0", *options], cwd=self.folder,
                                  timeout=60, text=True, check=True, stdout=subprocess.PIPE).stdout.strip()

        # The likeliest tokens are the same here and there: of an answer, and of a text that goes on.
        literal = re.search(r'tokenizer\("(.*?)", return', program)[1]
        theirs = continued(literal.encode().decode("unicode_escape"), program).split("<|im_end|>")[0].strip()
        answer = ours("--answer", "--prompt", re.search(r"user\\n(.*?)<", literal)[1])
        self.assertTrue(theirs and answer.startswith(theirs), f"{answer!r}\n{theirs!r}")
        prompt = "Good morning"
        theirs = continued(prompt, program.replace(literal, prompt)).strip()
        text = ours("--prompt", prompt)
        self.assertTrue(theirs and text.replace(prompt, "", 1).strip().startswith(theirs), f"{text!r}\n{theirs!r}")


if __name__ == "__main__":
    unittest.main()
