#!/usr/bin/env python3
"""Makes tests/runtime/oracle: what PyTorch computes, in fp64, for small models of odd sizes.

    python3 tools/oracle/make_llama_vectors.py [FOLDER]

Needs torch; where transformers is installed, the model here is first compared with its LlamaForCausalLM. Parameters,
tokens and targets come from a hash that tests/runtime/oracle.h repeats, so only results are stored:

    NAME.txt   `key value` lines: the configuration, the batch, the loss; then a line `tensor name elements norm autocast`
               per tensor, in ascending byte order of names, with the L2 norm of its gradient and the L2 error of the
               same gradient under torch.autocast(bfloat16)
    NAME.bin   the gradients of the summed loss, f32, little-endian, in that order
    adamw.bin  the parameters of the model `adamw` after a few steps of torch.optim.AdamW in fp64, in the same order
"""
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

# micro_batches run one after another; ignored: about one target in so many does not count (0: all count).
CASES = {
    "tied": dict(layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_width=72, vocabulary=67, tied=1,
                 rope_theta=10000.0, micro_batches=1, micro_batch=2, sequence=19, ignored=0),
    "untied": dict(layers=1, hidden=96, heads=2, kv_heads=1, head_dim=48, ffn_width=80, vocabulary=53, tied=0,
                   rope_theta=10000.0, micro_batches=2, micro_batch=1, sequence=33, ignored=3),
    "grouped": dict(layers=2, hidden=40, heads=4, kv_heads=1, head_dim=12, ffn_width=52, vocabulary=71, tied=1,
                    rope_theta=500000.0, micro_batches=2, micro_batch=3, sequence=37, ignored=5),
    "long": dict(layers=1, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn_width=40, vocabulary=301, tied=0,
                 rope_theta=10000.0, micro_batches=1, micro_batch=1, sequence=333, ignored=7),
}
ADAMW = dict(model="grouped", steps=6, counted=100, rate=1e-2, beta_1=0.9, beta_2=0.95, eps=1e-8, weight_decay=0.1,
             gradient_norm_max=1.0)
NORM_EPS = 1e-5
MASK = (1 << 64) - 1


def fnv(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    return h


def hashes(name, count):
    """splitmix64 of fnv(name) + i, for i in [0, count)."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv(name)) + np.arange(count, dtype=np.uint64)
        z = z * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(name, shape):
    """In [-1, 1), multiples of 2^-23: exact in f32."""
    u = (hashes(name, int(np.prod(shape))) >> np.uint64(40)).astype(np.float64) * 2.0 ** -23 - 1
    return torch.from_numpy(u.reshape(shape))


def shapes(c):
    q, kv, hidden = c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"], c["hidden"]
    s = {"model.embed_tokens.weight": (c["vocabulary"], hidden), "model.norm.weight": (hidden,)}
    for i in range(c["layers"]):
        p = f"model.layers.{i}."
        s |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,),
              p + "self_attn.q_proj.weight": (q, hidden), p + "self_attn.k_proj.weight": (kv, hidden),
              p + "self_attn.v_proj.weight": (kv, hidden), p + "self_attn.o_proj.weight": (hidden, q),
              p + "mlp.gate_proj.weight": (c["ffn_width"], hidden), p + "mlp.up_proj.weight": (c["ffn_width"], hidden),
              p + "mlp.down_proj.weight": (hidden, c["ffn_width"])}
    if not c["tied"]:
        s["lm_head.weight"] = (c["vocabulary"], hidden)
    return dict(sorted(s.items()))


def parameters(c):
    """Matrices uniform within 1/4, norm weights within 1/4 of 1."""
    return {name: uniform(name, shape) / 4 + (len(shape) == 1) for name, shape in shapes(c).items()}


def batches(c, name):
    rows = c["micro_batch"] * c["sequence"]
    for m in range(c["micro_batches"]):
        shape = (c["micro_batch"], c["sequence"])
        tokens = hashes(f"{name} tokens {m}", rows) % np.uint64(c["vocabulary"])
        targets = (hashes(f"{name} targets {m}", rows) % np.uint64(c["vocabulary"])).astype(np.int64)
        if c["ignored"]:
            targets[hashes(f"{name} ignored {m}", rows) % np.uint64(c["ignored"]) == 0] = -100
        yield torch.from_numpy(tokens.astype(np.int64).reshape(shape)), torch.from_numpy(targets.reshape(shape))


def norm(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, NORM_EPS)


def logits(c, w, tokens):
    b, t = tokens.shape
    d = c["head_dim"]
    dtype = w["model.norm.weight"].dtype
    frequency = c["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angle = torch.outer(torch.arange(t, dtype=torch.float64), frequency).repeat(1, 2)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def heads(y):
        return y.view(b, t, -1, d).transpose(1, 2)

    def rotate(y):
        first, second = y.chunk(2, -1)
        return (y * cos + torch.cat((-second, first), -1) * sin).to(y.dtype)

    x = F.embedding(tokens, w["model.embed_tokens.weight"])
    for i in range(c["layers"]):
        p = lambda part: w[f"model.layers.{i}.{part}.weight"]
        h = norm(x, p("input_layernorm"))
        q, k, v = (heads(F.linear(h, p(f"self_attn.{n}_proj"))) for n in "qkv")
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).reshape(b, t, -1), p("self_attn.o_proj"))
        h = norm(x, p("post_attention_layernorm"))
        x = x + F.linear(F.silu(F.linear(h, p("mlp.gate_proj"))) * F.linear(h, p("mlp.up_proj")), p("mlp.down_proj"))
    head = w["model.embed_tokens.weight" if c["tied"] else "lm_head.weight"]
    return F.linear(norm(x, w["model.norm.weight"]), head)


def gradients(c, name, dtype, autocast=False):
    """Summed loss, number of counted targets, gradients of the summed loss (through its mean, as one trains)."""
    w = {n: p.to(dtype).requires_grad_() for n, p in parameters(c).items()}
    counted = sum(int((targets != -100).sum()) for _, targets in batches(c, name))
    loss = 0.0
    for tokens, targets in batches(c, name):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = logits(c, w, tokens)
        out = out if out.dtype == torch.float64 else out.float()
        part = F.cross_entropy(out.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum") / counted
        part.backward()
        loss += part.item()
    return loss * counted, counted, {n: p.grad.double() * counted for n, p in w.items()}


def compare_with_transformers(c, name):
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        print(f"{name}: transformers is not installed, so not compared with it")
        return
    config = LlamaConfig(vocab_size=c["vocabulary"], hidden_size=c["hidden"], intermediate_size=c["ffn_width"],
                         num_hidden_layers=c["layers"], num_attention_heads=c["heads"],
                         num_key_value_heads=c["kv_heads"], head_dim=c["head_dim"], rms_norm_eps=NORM_EPS,
                         tie_word_embeddings=bool(c["tied"]), max_position_embeddings=2048,
                         rope_parameters=dict(rope_type="default", rope_theta=c["rope_theta"]))
    theirs = LlamaForCausalLM(config).double()
    w = parameters(c)
    missing, unexpected = theirs.load_state_dict(w, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    theirs.tie_weights()
    with torch.no_grad():
        for tokens, _ in batches(c, name):
            ours, reference = logits(c, w, tokens), theirs(tokens).logits
            error = ((ours - reference).norm() / reference.norm()).item()
            assert error < 1e-5, (name, error)  # transformers rounds norms and angles to f32
            print(f"{name}: differs from transformers by {error:.1e}")


def adamw():
    c = CASES[ADAMW["model"]]
    w = {n: p.requires_grad_() for n, p in parameters(c).items()}
    groups = [dict(params=[p for p in w.values() if p.dim() > 1], weight_decay=ADAMW["weight_decay"]),
              dict(params=[p for p in w.values() if p.dim() == 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["rate"], betas=(ADAMW["beta_1"], ADAMW["beta_2"]), eps=ADAMW["eps"])
    for step in range(ADAMW["steps"]):
        for group in optimizer.param_groups:
            group["lr"] = ADAMW["rate"] * (step + 1) / ADAMW["steps"]
        for n, p in w.items():
            # The first step is short enough not to be clipped.
            p.grad = uniform(f"{n} gradient {step}", p.shape) * (0.25 if step == 0 else 64.0) / ADAMW["counted"]
        torch.nn.utils.clip_grad_norm_(w.values(), ADAMW["gradient_norm_max"])
        optimizer.step()
    return w


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else (
        pathlib.Path(__file__).resolve().parents[2] / "tests" / "runtime" / "oracle")
    folder.mkdir(parents=True, exist_ok=True)
    for name, c in CASES.items():
        compare_with_transformers(c, name)
        loss, counted, exact = gradients(c, name, torch.float64)
        _, _, coarse = gradients(c, name, torch.float32, autocast=True)
        lines = [f"{key} {value}" for key, value in c.items()]
        lines += [f"norm_eps {NORM_EPS}", f"counted {counted}", f"loss {loss!r}"]
        for n, g in exact.items():
            lines.append(f"tensor {n} {g.numel()} {g.norm().item():.9e} {(coarse[n] - g).norm().item():.9e}")
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        np.concatenate([g.numpy().ravel() for g in exact.values()]).astype("<f4").tofile(folder / f"{name}.bin")
    (folder / "adamw.txt").write_text("".join(f"{key} {value}\n" for key, value in ADAMW.items()))
    final = np.concatenate([p.detach().numpy().ravel() for p in adamw().values()])
    final.astype("<f4").tofile(folder / "adamw.bin")


if __name__ == "__main__":
    main()
