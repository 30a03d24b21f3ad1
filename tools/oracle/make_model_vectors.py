#!/usr/bin/env python3
"""Makes tests/runtime/oracle: what PyTorch computes, in fp64, for small models of odd sizes.

    python3 tools/oracle/make_model_vectors.py [FOLDER]

Needs torch; where transformers is installed, each model here is first compared with its own. Parameters, tokens and
targets come from a hash that tests/runtime/oracle.h repeats, so only results are stored:

    NAME.txt   `key value` lines: the configuration, the batch, the loss; then a line `tensor name elements norm autocast`
               per tensor, in ascending byte order of names, with the L2 norm of its gradient and the L2 error of the
               same gradient under torch.autocast(bfloat16)
    NAME.bin   f32, little-endian: of the gradient of the summed loss at most 256 elements of each tensor, in that order,
               then 256 of the first micro-batch's logits; which, the hash says. Of padding they are 0
    NAME_draws.txt of a model with experts, `draw DATA` lines: other tokens and targets, of one sequence, by the name that
               they are drawn by; then `draws_of name elements error`: the L2 error of all draws' gradients under autocast,
               by the samples below
    NAME_draws.bin of each tensor, of each draw 12 elements of the gradient
    faults.txt `fault NAME CASE loss` and `tensor` lines as above, of the same models computed wrongly in one place
    faults.bin of each fault 16 elements of each tensor
    adamw.bin  the parameters of the model `adamw` after a few steps of torch.optim.AdamW in fp64 with gradients from the
               hash, in the same order
    training.txt `training CASE`, then `step loss` lines of a hundred steps of training in fp64, and `tensor` lines as above
               of the parameters in the end
    training.bin samples of these parameters

With experts, the gradient is of the objective: the summed loss, and for each sequence, times its counted targets, balance
times its balance loss + z times its z loss. `loss` is the former alone; `balance_loss` and `z_loss` are summed in the same
way, without these factors. Logits are those of evaluation, without capacity and dropout.
"""
import collections
import contextlib
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

import encoder

BASE = dict(family="llama", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn_width=72, vocabulary=67, tied=1,
            rope_theta=10000.0, rope="none", rope_factor=1.0, rope_original=0, micro_batches=1, micro_batch=2, sequence=19,
            ignored=0)
# micro_batches run one after another; ignored: about one target in so many does not count (0: all count). Sequences reach
# past the positions that a scaled model first learnt.
CASES = {
    "tied": BASE,
    "untied": BASE | dict(layers=1, hidden=96, heads=2, kv_heads=1, head_dim=48, ffn_width=80, vocabulary=53, tied=0,
                          micro_batches=2, micro_batch=1, sequence=33, ignored=3),
    "grouped": BASE | dict(hidden=72, heads=6, kv_heads=2, head_dim=12, ffn_width=52, vocabulary=1003, rope_theta=500000.0,
                           micro_batches=2, sequence=77, ignored=5),
    "long": BASE | dict(layers=1, hidden=32, kv_heads=2, head_dim=8, ffn_width=40, vocabulary=301, tied=0, micro_batch=1,
                        sequence=333, ignored=7),
    "linear": BASE | dict(layers=1, rope="linear", rope_factor=2.5, sequence=77),
    "llama3": BASE | dict(rope_theta=500000.0, rope="llama3", rope_factor=8.0, rope_original=32, sequence=77),
    "yarn": BASE | dict(layers=1, kv_heads=2, rope="yarn", rope_factor=4.0, rope_original=20, sequence=77),
    "qwen3": BASE | dict(family="qwen3", hidden=40, heads=6, kv_heads=2, head_dim=12, ffn_width=52, vocabulary=1003,
                         rope_theta=1e6, micro_batches=2, sequence=77, ignored=5),
    "qwen3_untied": BASE | dict(family="qwen3", layers=1, hidden=50, heads=4, kv_heads=1, head_dim=24, ffn_width=61,
                                vocabulary=131, tied=0, rope="yarn", rope_factor=4.0, rope_original=20, micro_batch=3,
                                sequence=53),
}
# dense_layers: numbers with commas, or -. expert_width 0: ffn_width. capacity 0: nothing is dropped. data: the name that
# tokens and targets are drawn by, found by trying, so that no choice is a near tie (MARGIN).
EXPERTS = dict(family="mixtral", experts=5, experts_per_token=2, expert_width=0, normalise_top_k=1, dense_layers="-",
               capacity=0.0, balance=0.0, balance_scope="sequence", z=0.0)
CASES |= {
    "mixtral": BASE | EXPERTS | dict(hidden=40, heads=6, kv_heads=2, head_dim=12, ffn_width=27, vocabulary=131,
                                     micro_batches=2, sequence=15, ignored=5, data="mixtral_4722"),
    "mixtral_long": BASE | EXPERTS | dict(layers=1, hidden=52, kv_heads=2, head_dim=18, ffn_width=31, vocabulary=1003,
                                          tied=0, sequence=75, ignored=7, experts=7, experts_per_token=3, capacity=1.0,
                                          balance=0.05, z=0.01, data="mixtral_long_722"),
    "qwen3_moe": BASE | EXPERTS | dict(family="qwen3_moe", layers=3, hidden=50, kv_heads=2, head_dim=14, ffn_width=52,
                                       vocabulary=157, rope_theta=1e6, micro_batches=2, sequence=9, ignored=5, experts=9,
                                       experts_per_token=4, expert_width=21, normalise_top_k=0, dense_layers="1",
                                       balance=0.1, balance_scope="micro_batch", z=0.02, data="qwen3_moe_5295"),
    "qwen3_moe_untied": BASE | EXPERTS | dict(family="qwen3_moe", layers=1, hidden=46, kv_heads=1, head_dim=22,
                                              ffn_width=58, vocabulary=211, tied=0, rope_theta=1e6, micro_batch=3,
                                              sequence=33, experts=3, experts_per_token=1, expert_width=40, balance=0.02,
                                              data="qwen3_moe_untied_1423"),
    "qwen2_moe": BASE | EXPERTS | dict(family="qwen2_moe", hidden=40, kv_heads=2, head_dim=10, ffn_width=37, vocabulary=149,
                                       micro_batches=2, sequence=11, ignored=5, experts=6, experts_per_token=3,
                                       expert_width=19, shared_expert_width=29, normalise_top_k=0, balance=0.05,
                                       data="qwen2_moe_50"),
    "mixtral_trained": BASE | EXPERTS | dict(layers=1, hidden=38, heads=3, kv_heads=1, head_dim=14, ffn_width=23,
                                             vocabulary=89, micro_batches=2, micro_batch=1, sequence=11, experts=6,
                                             balance=0.05, z=0.01, data="mixtral_trained_122"),
}
# padded: the end of each row is no part of its text, and has no target. Dropout as kernels/dropout.h does it.
BERT = dict(family="bert", layers=2, hidden=48, heads=4, kv_heads=4, head_dim=12, ffn_width=70, vocabulary=131, tied=1,
            sequence_max=64, token_types=2, dropout=0.0, attention_dropout=0.0, padded=1, micro_batches=2, micro_batch=4,
            sequence=61, ignored=7, data="bert_1")
CASES |= {
    "bert": BERT,
    "bert_long": BERT | dict(layers=1, hidden=66, heads=6, kv_heads=6, head_dim=11, vocabulary=1003, sequence_max=150,
                             token_types=1, padded=0, micro_batches=2, micro_batch=2, sequence=141, ignored=5,
                             data="bert_long_1"),
    "bert_trained": BERT | dict(layers=1, hidden=36, heads=3, kv_heads=3, ffn_width=50, vocabulary=89, micro_batch=2,
                                sequence=23, dropout=0.1, attention_dropout=0.15, data="bert_trained"),
    "bert_dropout": BERT | dict(layers=1, hidden=70, heads=2, kv_heads=2, head_dim=35, ffn_width=130, vocabulary=67,
                                sequence_max=90, ignored=3, dropout=0.2, attention_dropout=0.3, sequence=77,
                                data="bert_dropout_0"),
}
# How far the logit of the last expert chosen is above that of the first one not chosen, at least: for f32, and for bf16.
MARGIN, MARGIN_BF16 = 1e-3, 0.05
IN_F32_ALONE = ("mixtral_long", "mixtral_trained")
# In bf16 the few tokens without a near tie are too few to average their roundings: what one case comes to is chance. So many
# sequences are pooled, in which no choice is as near as that, neither in fp64 nor under autocast.
DRAWN, DRAWS, DRAW_MARGIN = ("mixtral", "qwen3_moe", "qwen3_moe_untied", "qwen2_moe"), 24, 0.1
ADAMW = dict(model="grouped", steps=6, counted=100, rate=1e-2, beta_1=0.9, beta_2=0.95, eps=1e-8, weight_decay=0.1,
             gradient_norm_max=1.0)
TRAINED = ("bert_trained", "grouped", "qwen3", "mixtral_trained")
# Otherwise as ADAMW. Data comes again after some steps, so that the loss halves; at ten times the rate training is chaotic,
# and PyTorch's own f32 is 20 % from fp64 in the end (here 1e-6).
TRAINING = dict(steps=100, warmup=10, rate=3e-4, steps_of_data=4)
# One mistake each, in a case that it must show in.
FAULTS = {
    "attention_scale": "grouped", "mask_sees_next": "grouped", "mask_not_itself": "grouped", "rope_pairs": "grouped",
    "rope_backwards": "grouped", "rope_unscaled": "llama3", "yarn_amplitude": "yarn", "rope_twice_as_fast": "yarn",
    "norm_epsilon": "grouped", "norm_weight_plus_one": "grouped", "heads_share_in_turn": "grouped", "gelu": "grouped",
    "tied_gradient_lost": "grouped", "ignored_targets_count": "grouped", "last_norm_left_out": "grouped",
    "head_norms_swapped": "qwen3", "head_norm_after_rope": "qwen3", "head_norm_of_all_heads": "qwen3",
    "not_normalised": "mixtral", "normalised_by_others": "mixtral", "one_expert_fewer": "mixtral",
    "weights_swapped": "mixtral", "gate_and_up_swapped": "mixtral", "weight_applied_twice": "mixtral",
    "router_gradient_lost": "mixtral", "normalised": "qwen3_moe", "sigmoid": "qwen3_moe",
    "capacity_rounded_down": "mixtral_long", "capacity_of_micro_batch": "mixtral_long",
    "capacity_keeps_last": "mixtral_long", "normalised_after_dropping": "mixtral_long",
    "balance_counts_kept_only": "mixtral_long", "balance_of_micro_batch": "mixtral_long",
    "balance_of_sequence": "qwen3_moe", "balance_shares_of_choices": "qwen3_moe", "balance_gradient_lost": "mixtral_long",
    "z_not_squared": "mixtral_long", "z_gradient_lost": "mixtral_long", "layers_summed": "qwen3_moe",
    "dense_layers_averaged": "qwen3_moe", "router_losses_per_token": "mixtral_long",
    "qkv_biases_left_out": "qwen2_moe", "no_shared_expert": "qwen2_moe", "shared_expert_unweighted": "qwen2_moe",
    "padding_is_seen": "bert", "later_tokens_hidden": "bert", "gelu_tanh": "bert", "biases_left_out": "bert",
    "layer_norm_unbiased": "bert", "token_type_1": "bert", "positions_from_1": "bert", "norm_before_adding": "bert",
    "head_gradient_lost": "bert", "head_bias_left_out": "bert", "dropout_not_scaled": "bert_dropout",
}
BIASES = ("qwen2_moe",)
HEAD_NORMS = ("qwen3", "qwen3_moe")
NORM_EPS = 1e-5
SAMPLES, FAULT_SAMPLES, DRAW_SAMPLES = 256, 16, 12
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


def sampled(name, values, count):
    """At most so many elements of a tensor: all of a small one."""
    flat = values.detach().reshape(-1)
    if flat.numel() <= count:
        return flat
    return flat[torch.from_numpy((hashes(f"{name} sample", count) % np.uint64(flat.numel())).astype(np.int64))]


def has_experts(c, layer):
    return "experts" in c and str(layer) not in c["dense_layers"].split(",")


def shared_expert(c, layer):
    """Names of its gate, and of its three projections; none."""
    if "shared_expert_width" not in c:
        return []
    block = f"model.layers.{layer}.mlp.shared_expert"
    return [block + "_gate.weight"] + [f"{block}.{part}.weight" for part in ("gate_proj", "up_proj", "down_proj")]


def router(c, layer):
    return f"model.layers.{layer}.{'block_sparse_moe' if c['family'] == 'mixtral' else 'mlp'}.gate.weight"


def projections(c, layer, expert=None):
    """Names of the gate, up and down matrices, of an expert or of a dense layer."""
    block, parts = "mlp", ("gate_proj", "up_proj", "down_proj")
    if expert is not None:
        block = f"mlp.experts.{expert}"
        if c["family"] == "mixtral":
            block, parts = f"block_sparse_moe.experts.{expert}", ("w1", "w3", "w2")
    return [f"model.layers.{layer}.{block}.{part}.weight" for part in parts]


def feed_forward_shapes(c, layer):
    if not has_experts(c, layer):
        blocks, width, s = [projections(c, layer)], c["ffn_width"], {}
    else:
        blocks = [projections(c, layer, e) for e in range(c["experts"])]
        width, s = c["expert_width"] or c["ffn_width"], {router(c, layer): (c["experts"], c["hidden"])}
    blocks = [(width, *block) for block in blocks]
    if has_experts(c, layer) and shared_expert(c, layer):
        gate, *shared = shared_expert(c, layer)
        s[gate] = (1, c["hidden"])
        blocks.append((c["shared_expert_width"], *shared))
    for width, gate, up, down in blocks:
        s |= {gate: (width, c["hidden"]), up: (width, c["hidden"]), down: (c["hidden"], width)}
    return s


Batch = collections.namedtuple("Batch", "tokens targets lengths keys")


def is_encoder(c):
    return c["family"] == "bert"


def shapes(c):
    if is_encoder(c):
        return dict(sorted(encoder.shapes(c).items()))
    q, kv, hidden = c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"], c["hidden"]
    s = {"model.embed_tokens.weight": (c["vocabulary"], hidden), "model.norm.weight": (hidden,)}
    for i in range(c["layers"]):
        p = f"model.layers.{i}."
        s |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,),
              p + "self_attn.q_proj.weight": (q, hidden), p + "self_attn.k_proj.weight": (kv, hidden),
              p + "self_attn.v_proj.weight": (kv, hidden), p + "self_attn.o_proj.weight": (hidden, q)}
        s |= feed_forward_shapes(c, i)
        if c["family"] in BIASES:
            s |= {f"{p}self_attn.{part}_proj.bias": (rows,) for part, rows in (("q", q), ("k", kv), ("v", kv))}
        if c["family"] in HEAD_NORMS:
            s |= {p + "self_attn.q_norm.weight": (c["head_dim"],), p + "self_attn.k_norm.weight": (c["head_dim"],)}
    if not c["tied"]:
        s["lm_head.weight"] = (c["vocabulary"], hidden)
    return dict(sorted(s.items()))


def parameter(name, shape):
    """Matrices within 1/4 of 0, queries and keys within 1/3, so that attention has peaks, routers within 1/2, so that
    experts are chosen clearly; norm weights from 1/2 to 3/2, of queries from 3/2 to 9/2; biases within 1/2."""
    values = uniform(name, shape)
    if name.endswith(".bias"):
        return values / 2
    if len(shape) == 1:
        return (values / 2 + 1) * (3 if "q_norm" in name else 1)
    if ".gate.weight" in name:
        return values / 2
    return values / (3 if any(part in name for part in ("q_proj", "k_proj", ".query.", ".key.")) else 4)


def parameters(c):
    return {name: parameter(name, shape) for name, shape in shapes(c).items()}


def dropless(c):
    return c | {key: 0.0 for key in ("capacity", "dropout", "attention_dropout") if key in c}


def batches(c, name, step=0):
    rows, name = c["micro_batch"] * c["sequence"], c.get("data", name)
    for m in range(step * c["micro_batches"], (step + 1) * c["micro_batches"]):
        shape = (c["micro_batch"], c["sequence"])
        tokens = hashes(f"{name} tokens {m}", rows) % np.uint64(c["vocabulary"])
        targets = (hashes(f"{name} targets {m}", rows) % np.uint64(c["vocabulary"])).astype(np.int64)
        if c["ignored"]:
            targets[hashes(f"{name} ignored {m}", rows) % np.uint64(c["ignored"]) == 0] = -100
        lengths, keys = [c["sequence"]] * c["micro_batch"], [int(key) for key in hashes(f"{name} keys {m}", c["micro_batch"])]
        if c.get("padded"):
            lengths = [c["sequence"] - int(h % (c["sequence"] // 2)) for h in
                       map(int, hashes(f"{name} lengths {m}", c["micro_batch"]))]
        for row, length in enumerate(lengths):
            targets.reshape(shape)[row, length:] = -100
        yield Batch(torch.from_numpy(tokens.astype(np.int64).reshape(shape)), torch.from_numpy(targets.reshape(shape)),
                    lengths, keys)


def rope_frequencies(c, fault):
    """Chen et al. 2023; Llama 3.1; YaRN (Peng et al. 2023, section 3.2: beta_fast 32, beta_slow 1)."""
    d, theta, factor, original = c["head_dim"], c["rope_theta"], c["rope_factor"], c["rope_original"]
    i = torch.arange(0, d // 2, dtype=torch.float64)
    frequency = theta ** (-2 * i / d)
    if c["rope"] == "none" or fault == "rope_unscaled":
        return frequency
    if c["rope"] == "linear":
        return frequency / factor
    if c["rope"] == "llama3":
        low, high = 1.0, 4.0
        kept = ((original * frequency / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    else:
        def index(turns):
            return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        first, last = max(math.floor(index(32)), 0), min(math.ceil(index(1)), d - 1)
        kept = 1 - ((i - first) / ((last - first) or 0.001)).clamp(0, 1)
    return frequency * kept + frequency / factor * (1 - kept)


def feed_forward(w, names, h, act=F.silu):
    gate, up, down = (w[name] for name in names)
    return F.linear(act(F.linear(h, gate)) * F.linear(h, up), down)


def within_capacity(c, chosen, fault):
    """Which choices [sequences, tokens, experts per token] find room."""
    share = c["capacity"] * chosen.shape[1] * c["experts_per_token"] / c["experts"]
    room = math.floor(share) if fault == "capacity_rounded_down" else math.ceil(share)
    if not room:
        return torch.ones_like(chosen, dtype=torch.bool)
    taken = F.one_hot(chosen, c["experts"]).sum(-2)  # [sequences, tokens, experts]
    if fault == "capacity_of_micro_batch":
        queue, room = taken.flatten(0, 1).cumsum(0).view_as(taken), room * len(taken)
    elif fault == "capacity_keeps_last":
        queue = taken.flip(1).cumsum(1).flip(1)
    else:
        queue = taken.cumsum(1)
    return (queue <= room).gather(-1, chosen)


def experts(c, w, layer, h, routings, fault):
    scores = F.linear(h, w[router(c, layer)])
    scores = scores if scores.dtype == torch.float64 else scores.float()
    p = scores.sigmoid() if fault == "sigmoid" else scores.softmax(-1)
    chosen = p.topk(c["experts_per_token"] - (fault == "one_expert_fewer")).indices
    weights, kept = p.gather(-1, chosen), within_capacity(c, chosen, fault)
    if c["normalise_top_k"] and fault != "not_normalised" or fault == "normalised":
        counted = weights * kept if fault == "normalised_after_dropping" else weights
        divisor = counted.sum(-1, keepdim=True)
        weights = weights / (1 - divisor if fault == "normalised_by_others" else divisor + (divisor == 0))
    if fault == "weights_swapped":
        weights = torch.cat((weights[..., :2].flip(-1), weights[..., 2:]), -1)
    if fault == "weight_applied_twice":
        weights = weights.square()
    if fault == "router_gradient_lost":
        weights = weights.detach()
    routings.append((scores, chosen, kept))
    y = 0
    for e in range(c["experts"]):
        gate, up, down = projections(c, layer, e)
        names = (up, gate, down) if fault == "gate_and_up_swapped" else (gate, up, down)
        y = y + (weights * kept * (chosen == e)).sum(-1, keepdim=True) * feed_forward(w, names, h)
    if shared_expert(c, layer) and fault != "no_shared_expert":
        gate, *names = shared_expert(c, layer)
        weight = torch.ones(()) if fault == "shared_expert_unweighted" else F.linear(h, w[gate]).sigmoid()
        y = y + weight * feed_forward(w, names, h)
    return y


def router_losses(c, routings, fault=None):
    """The balance loss (Fedus et al. 2021) and the z loss (Zoph et al. 2022) of each sequence of a micro-batch."""
    scores, chosen, kept = (torch.stack(part) for part in zip(*routings))  # [layers, sequences, tokens, ...]
    p = scores.softmax(-1)
    choices = F.one_hot(chosen, c["experts"])
    if fault == "balance_counts_kept_only":
        choices = choices * kept[..., None]
    scope = dict(balance_of_micro_batch="micro_batch", balance_of_sequence="sequence").get(fault, c["balance_scope"])
    over = (0, 1, 2) if scope == "micro_batch" else (2,)
    shares = choices.sum(-2).to(p.dtype).mean(over, keepdim=True)
    if fault == "balance_shares_of_choices":
        shares = shares / c["experts_per_token"]
    p = p.detach() if fault == "balance_gradient_lost" else p
    balance = c["experts"] * (shares * p.mean(over, keepdim=True)).sum(-1).mean((0, 2)).expand(scores.shape[1])
    log_sums = scores.logsumexp(-1)
    if fault == "z_gradient_lost":
        log_sums = log_sums.detach()
    z = (log_sums if fault == "z_not_squared" else log_sums.square()).mean((0, 2))
    layers = dict(layers_summed=len(scores), dense_layers_averaged=len(scores) / c["layers"]).get(fault, 1)
    return balance * layers, z * layers


def margin(c, routings):
    likeliest = torch.stack([scores for scores, _, _ in routings]).topk(c["experts_per_token"] + 1).values
    return (likeliest[..., -2] - likeliest[..., -1]).min().item()


def logits(c, w, batch, fault=None, routings=None):
    """To routings, each layer with experts adds its logits, which experts it chose, and whether they had room."""
    if is_encoder(c):
        return encoder.logits(c, w, batch, fault)
    routings, tokens = [] if routings is None else routings, batch.tokens
    b, t = tokens.shape
    d, q_heads, kv_heads = c["head_dim"], c["heads"], c["kv_heads"]
    dtype = w["model.norm.weight"].dtype
    eps = NORM_EPS * (10 if fault == "norm_epsilon" else 1)
    positions = torch.arange(t, dtype=torch.float64) * (2 if fault == "rope_twice_as_fast" else 1)
    angle = torch.outer(positions, rope_frequencies(c, fault)).repeat(1, 2)
    if fault == "rope_backwards":
        angle = -angle
    amplitude = 0.1 * math.log(c["rope_factor"]) + 1 if c["rope"] == "yarn" and fault != "yarn_amplitude" else 1.0
    cos, sin = (angle.cos() * amplitude).to(dtype), (angle.sin() * amplitude).to(dtype)

    def norm(x, weight):
        return F.rms_norm(x, x.shape[-1:], weight + 1 if fault == "norm_weight_plus_one" else weight, eps)

    def heads(y):
        return y.view(b, t, -1, d).transpose(1, 2)

    def rotate(y):
        if fault == "rope_pairs":  # neighbours, as in the paper and in Meta's files
            pairs = y.unflatten(-1, (-1, 2))
            c_, s_ = cos[:, :d // 2], sin[:, :d // 2]
            return torch.stack((pairs[..., 0] * c_ - pairs[..., 1] * s_, pairs[..., 1] * c_ + pairs[..., 0] * s_),
                               -1).flatten(-2).to(y.dtype)
        first, second = y.chunk(2, -1)
        return (y * cos + torch.cat((-second, first), -1) * sin).to(y.dtype)

    def head_norm(y, weight):
        if fault == "head_norm_of_all_heads":
            whole = y.transpose(1, 2).flatten(-2)
            return heads(F.rms_norm(whole, whole.shape[-1:], weight.repeat(y.shape[1]), eps))
        return norm(y, weight)

    def attend(q, k, v):
        if kv_heads != q_heads:
            share = (lambda y: y.repeat(1, q_heads // kv_heads, 1, 1)) if fault == "heads_share_in_turn" else (
                lambda y: y.repeat_interleave(q_heads // kv_heads, 1))
            k, v = share(k), share(v)
        row, column = torch.arange(t)[:, None], torch.arange(t)[None, :]
        seen = column <= row + (1 if fault == "mask_sees_next" else 0)
        if fault == "mask_not_itself":
            seen = (column < row) | (row == 0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen,
                                              scale=(d + (fault == "attention_scale")) ** -0.5)

    def bias(layer, part):
        return w.get(f"model.layers.{layer}.self_attn.{part}_proj.bias") if fault != "qkv_biases_left_out" else None

    x = F.embedding(tokens, w["model.embed_tokens.weight"])
    for i in range(c["layers"]):
        p = lambda part: w[f"model.layers.{i}.{part}.weight"]
        h = norm(x, p("input_layernorm"))
        q, k, v = (heads(F.linear(h, p(f"self_attn.{n}_proj"), bias(i, n))) for n in "qkv")
        if c["family"] in HEAD_NORMS:
            names = ("self_attn.k_norm", "self_attn.q_norm") if fault == "head_norms_swapped" else (
                "self_attn.q_norm", "self_attn.k_norm")
            if fault == "head_norm_after_rope":
                q, k = head_norm(rotate(q), p(names[0])), head_norm(rotate(k), p(names[1]))
            else:
                q, k = rotate(head_norm(q, p(names[0]))), rotate(head_norm(k, p(names[1])))
        else:
            q, k = rotate(q), rotate(k)
        y = attend(q, k, v)
        x = x + F.linear(y.transpose(1, 2).reshape(b, t, -1), p("self_attn.o_proj"))
        h = norm(x, p("post_attention_layernorm"))
        if has_experts(c, i):
            x = x + experts(c, w, i, h, routings, fault)
        else:
            x = x + feed_forward(w, projections(c, i), h, F.gelu if fault == "gelu" else F.silu)
    head = w["model.embed_tokens.weight" if c["tied"] else "lm_head.weight"]
    if fault == "tied_gradient_lost":
        head = head.detach()
    return F.linear(x if fault == "last_norm_left_out" else norm(x, w["model.norm.weight"]), head)


def backward(c, name, w, step=0, autocast=False, fault=None):
    """Adds the gradients of the objective per counted target; returns what it is made of and the number of these."""
    counted = sum(int((batch.targets != -100).sum()) for batch in batches(c, name, step))
    losses = dict.fromkeys(("loss", "balance_loss", "z_loss"), 0.0) | dict(margin=math.inf)
    for batch in batches(c, name, step):
        routings, targets = [], batch.targets
        if fault == "ignored_targets_count":
            targets = targets.clamp(min=0)
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            out = logits(c, w, batch, fault, routings)
        out = out if out.dtype == torch.float64 else out.float()
        part = F.cross_entropy(out.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum") / counted
        losses["loss"] += part.item()
        if routings:
            weights = (targets != -100).sum(-1) / counted
            if fault == "router_losses_per_token":
                weights = torch.full_like(weights, c["sequence"] / counted)
            balance, z = ((weights * of_sequences).sum() for of_sequences in router_losses(c, routings, fault))
            losses["balance_loss"] += balance.item()
            losses["z_loss"] += z.item()
            losses["margin"] = min(losses["margin"], margin(c, routings))
            part = part + c["balance"] * balance + c["z"] * z
        part.backward()
    return losses, counted


def gradients(c, name, dtype, autocast=False, fault=None):
    """Summed losses, number of counted targets, gradients of the summed objective (through its mean, as one trains)."""
    w = {n: p.to(dtype).requires_grad_() for n, p in parameters(c).items()}
    losses, counted = backward(c, name, w, autocast=autocast, fault=fault)
    losses |= {key: losses[key] * counted for key in ("loss", "balance_loss", "z_loss")}
    return losses, counted, {n: torch.zeros_like(p, dtype=torch.float64) if p.grad is None
                             else p.grad.double() * counted for n, p in w.items()}


def rope_parameters(c):
    rope = dict(rope_type="default" if c["rope"] == "none" else c["rope"], rope_theta=c["rope_theta"])
    if c["rope"] != "none":
        rope["factor"] = c["rope_factor"]
    if c["rope"] in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = c["rope_original"]
    if c["rope"] == "llama3":
        rope |= dict(low_freq_factor=1.0, high_freq_factor=4.0)
    return rope


def expert_fields(c):
    if c["family"] == "mixtral":
        return dict(num_local_experts=c["experts"], num_experts_per_tok=c["experts_per_token"])
    if c["family"] in ("qwen2_moe", "qwen3_moe"):
        shared = dict(shared_expert_intermediate_size=c["shared_expert_width"]) if "shared_expert_width" in c else {}
        return shared | dict(num_experts=c["experts"], num_experts_per_tok=c["experts_per_token"],
                    moe_intermediate_size=c["expert_width"] or c["ffn_width"], norm_topk_prob=bool(c["normalise_top_k"]),
                    mlp_only_layers=[i for i in range(c["layers"]) if not has_experts(c, i)])
    return {}


def as_transformers_has_it(c, w):
    """In memory, the experts of a layer are two tensors."""
    w = dict(w)
    for i in filter(lambda i: has_experts(c, i), range(c["layers"])):
        gate, up, down = ([w.pop(names[part]) for names in (projections(c, i, e) for e in range(c["experts"]))]
                          for part in range(3))
        p = f"model.layers.{i}.mlp."
        w[p + "gate.weight"] = w.pop(router(c, i))
        w[p + "experts.gate_up_proj"] = torch.cat((torch.stack(gate), torch.stack(up)), 1)
        w[p + "experts.down_proj"] = torch.stack(down)
    return w


def compare_with_transformers(c, name):
    """Without capacity, which it has not."""
    try:
        import transformers
    except ImportError:
        print(f"{name}: transformers is not installed, so not compared with it")
        return
    if is_encoder(c):
        compare_encoder_with_transformers(c, name)
        return
    family = {"llama": "Llama", "qwen3": "Qwen3", "mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe",
              "qwen3_moe": "Qwen3Moe"}[c["family"]]
    implementation = dict(experts_implementation="eager") if "experts" in c else {}
    config = getattr(transformers, family + "Config")(
        vocab_size=c["vocabulary"], hidden_size=c["hidden"], intermediate_size=c["ffn_width"],
        num_hidden_layers=c["layers"], num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"],
        **({} if c["family"] == "qwen2_moe" else dict(head_dim=c["head_dim"])), rms_norm_eps=NORM_EPS, tie_word_embeddings=bool(c["tied"]), max_position_embeddings=2048,
        rope_parameters=rope_parameters(c), **expert_fields(c), **implementation)
    theirs = getattr(transformers, family + "ForCausalLM")(config).double()
    w = parameters(c)
    missing, unexpected = theirs.load_state_dict(as_transformers_has_it(c, w), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    theirs.tie_weights()
    with torch.no_grad():
        for batch in batches(c, name):
            routings = []
            ours = logits(dropless(c), w, batch, routings=routings)
            output = theirs(batch.tokens, **(dict(output_router_logits=True) if routings else {}))
            reference = output.logits
            error = ((ours - reference).norm() / reference.norm()).item()
            assert error < 3e-5, (name, error)  # transformers rounds norms and angles to f32
            print(f"{name}: differs from transformers by {error:.1e}")
            if routings:
                balance = router_losses(c | dict(balance_scope="micro_batch"), routings)[0][0].item()
                error = abs(balance / output.aux_loss.item() - 1)
                assert error < 1e-5, (name, error)
                print(f"{name}: its balance loss of {balance:.3f} differs by {error:.1e}")


def compare_encoder_with_transformers(c, name):
    """Their padding is masked for all; behind a text, what they compute is not looked at."""
    theirs, w = encoder.of_transformers(c), parameters(c)
    missing, unexpected = theirs.load_state_dict(w, strict=False)
    assert not unexpected and set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}, missing
    theirs.tie_weights()
    with torch.no_grad():
        for batch in batches(c, name):
            text = torch.arange(c["sequence"])[None, :] < torch.tensor(batch.lengths)[:, None]
            ours = logits(dropless(c), w, batch)[text]
            reference = theirs(batch.tokens, attention_mask=text.long()).logits[text]
            error = ((ours - reference).norm() / reference.norm()).item()
            assert error < 1e-12, (name, error)
            print(f"{name}: differs from transformers by {error:.1e}")


def adamw_of(w):
    groups = [dict(params=[p for p in w.values() if p.dim() > 1], weight_decay=ADAMW["weight_decay"]),
              dict(params=[p for p in w.values() if p.dim() == 1], weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=ADAMW["rate"], betas=(ADAMW["beta_1"], ADAMW["beta_2"]), eps=ADAMW["eps"])


def update(w, optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
    torch.nn.utils.clip_grad_norm_(w.values(), ADAMW["gradient_norm_max"])
    optimizer.step()


def adamw():
    w = {n: p.requires_grad_() for n, p in parameters(CASES[ADAMW["model"]]).items()}
    optimizer = adamw_of(w)
    for step in range(ADAMW["steps"]):
        for n, p in w.items():
            # The first step is short enough not to be clipped.
            p.grad = uniform(f"{n} gradient {step}", p.shape) * (0.25 if step == 0 else 64.0) / ADAMW["counted"]
        update(w, optimizer, ADAMW["rate"] * (step + 1) / ADAMW["steps"])
    return w


def train(c, name):
    w = {n: p.requires_grad_() for n, p in parameters(c).items()}
    optimizer = adamw_of(w)
    losses = []
    for step in range(TRAINING["steps"]):
        optimizer.zero_grad()
        step_losses, _ = backward(c, name, w, step % TRAINING["steps_of_data"])
        assert step_losses["margin"] > MARGIN, (name, step, step_losses["margin"])
        losses.append(step_losses["loss"])
        update(w, optimizer, TRAINING["rate"] * min(1, (step + 1) / TRAINING["warmup"]))
    return losses, w


def write_floats(path, tensors):
    np.concatenate([t.numpy().ravel() for t in tensors]).astype("<f4").tofile(path)


def tensor_line(name, gradient, error):
    return f"tensor {name} {gradient.numel()} {gradient.norm().item():.9e} {error:.9e}"


def routings_of(c, name, dtype, autocast=False):
    w = {n: p.to(dtype) for n, p in parameters(c).items()}
    routings = []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
        for batch in batches(c, name):
            logits(c, w, batch, routings=routings)
    return routings


def same_choices(routings, others):
    return all(torch.equal(a.sort(-1).values, b.sort(-1).values) for (_, a, _), (_, b, _) in zip(routings, others))


def check_routing(c, name, least, exact):
    """What comparisons rely on: clear choices, with a capacity some of them dropped; in bf16 all experts used, too."""
    in_bf16 = name not in IN_F32_ALONE
    assert least > (MARGIN_BF16 if in_bf16 else MARGIN), (name, least)
    routings = routings_of(c, name, torch.float64)
    dropped = sum(int((~kept).sum()) for _, _, kept in routings)
    assert (dropped > 0) == (c["capacity"] > 0), (name, dropped)
    print(f"{name}: margin {least:.4f}, {dropped} choices dropped of {sum(kept.numel() for _, _, kept in routings)}")
    if in_bf16:
        assert all(g.norm() > 0 for g in exact.values()), name
        coarse = routings_of(c, name, torch.float32, autocast=True)
        assert same_choices(routings, coarse), name


def write_case(folder, name, c):
    compare_with_transformers(c, name)
    losses, counted, exact = gradients(c, name, torch.float64)
    _, _, coarse = gradients(c, name, torch.float32, autocast=True)
    with torch.no_grad():  # as one evaluates: without capacity
        batch = next(batches(c, name))
        scores = logits(dropless(c), parameters(c), batch)
        for row, length in enumerate(batch.lengths):
            scores[row, length:] = 0
    lines = [f"{key} {value}" for key, value in c.items()]
    norm_eps = encoder.LAYER_NORM_EPS if is_encoder(c) else NORM_EPS
    lines += [f"norm_eps {norm_eps}", f"counted {counted}", f"loss {losses['loss']!r}",
              f"logits_norm {scores.norm().item():.9e}"]
    if "experts" in c:
        check_routing(c, name, losses["margin"], exact)
        lines += [f"{key} {losses[key]!r}" for key in ("balance_loss", "z_loss", "margin")]
    lines += [tensor_line(n, g, (coarse[n] - g).norm().item()) for n, g in exact.items()]
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    write_floats(folder / f"{name}.bin",
                 [sampled(n, g, SAMPLES) for n, g in exact.items()] + [sampled("logits", scores, SAMPLES)])


def draws(name):
    found, number = [], 0
    while len(found) < DRAWS:
        number += 1
        c = CASES[name] | dict(micro_batches=1, micro_batch=1, data=f"{name}_draw_{number}")
        exact = routings_of(c, name, torch.float64)
        if margin(c, exact) < DRAW_MARGIN:
            continue
        coarse = routings_of(c, name, torch.float32, autocast=True)
        if margin(c, coarse) > DRAW_MARGIN and same_choices(exact, coarse):
            found.append(c)
    print(f"{name}: {DRAWS} draws of {number}")
    return found


def write_draws(folder, name):
    of_draws = draws(name)
    exact = [gradients(c, name, torch.float64)[2] for c in of_draws]
    coarse = [gradients(c, name, torch.float32, autocast=True)[2] for c in of_draws]
    lines, floats = [f"draw {c['data']}" for c in of_draws], []
    for n in exact[0]:
        pairs = [(sampled(n, a[n], DRAW_SAMPLES), sampled(n, b[n], DRAW_SAMPLES)) for a, b in zip(coarse, exact)]
        error = math.sqrt(sum((a - b).norm().item() ** 2 for a, b in pairs) * exact[0][n].numel() / len(pairs[0][0]))
        lines.append(f"draws_of {n} {exact[0][n].numel()} {error:.9e}")
        floats += [sampled(n, g[n], DRAW_SAMPLES) for g in exact]
    (folder / f"{name}_draws.txt").write_text("\n".join(lines) + "\n")
    write_floats(folder / f"{name}_draws.bin", floats)


def check_fault(fault, exact, wrong):
    """The comparison in C++ sees it, by far."""
    whole = torch.stack([g.norm() for g in wrong.values()]).norm()

    def seen(n):
        a, b = (sampled(n, g[n], FAULT_SAMPLES) for g in (exact, wrong))
        distance = (a - b).norm() * math.sqrt(wrong[n].numel() / a.numel())
        return max(distance, (exact[n].norm() - wrong[n].norm()).abs()) / (5e-6 * wrong[n].norm() + 1e-7 * whole)

    factor = max(seen(n).item() for n in wrong)
    assert factor > 100, (fault, factor)
    print(f"{fault}: {factor:.0f} times the tolerance")


def write_faults(folder):
    lines, floats = [], []
    for fault, name in FAULTS.items():
        losses, _, wrong = gradients(CASES[name], name, torch.float64, fault=fault)
        check_fault(fault, gradients(CASES[name], name, torch.float64)[2], wrong)
        lines.append(f"fault {fault} {name} {losses['loss']!r}")
        lines += [tensor_line(n, g, 0.0) for n, g in wrong.items()]
        floats += [sampled(n, g, FAULT_SAMPLES) for n, g in wrong.items()]
    (folder / "faults.txt").write_text("\n".join(lines) + "\n")
    write_floats(folder / "faults.bin", floats)


def write_training(folder):
    lines, floats = [f"{key} {value}" for key, value in TRAINING.items()], []
    for name in TRAINED:
        losses, w = train(CASES[name], name)
        print(f"{name}: trained from a loss of {losses[0]:.3f} to {losses[-1]:.3f}")
        lines += [f"training {name}"] + [f"step {loss!r}" for loss in losses]
        lines += [tensor_line(n, p.detach(), 0.0) for n, p in w.items()]
        floats += [sampled(n, p, SAMPLES) for n, p in w.items()]
    (folder / "training.txt").write_text("\n".join(lines) + "\n")
    write_floats(folder / "training.bin", floats)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else (
        pathlib.Path(__file__).resolve().parents[2] / "tests" / "runtime" / "oracle")
    folder.mkdir(parents=True, exist_ok=True)
    for name, c in CASES.items():
        write_case(folder, name, c)
    for name in DRAWN:
        write_draws(folder, name)
    write_faults(folder)
    (folder / "adamw.txt").write_text("".join(f"{key} {value}\n" for key, value in ADAMW.items()))
    write_floats(folder / "adamw.bin", [sampled(n, p, SAMPLES) for n, p in adamw().items()])
    write_training(folder)


if __name__ == "__main__":
    main()
