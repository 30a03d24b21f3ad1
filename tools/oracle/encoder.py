"""BERT with its head for masked tokens (Devlin et al. 2018), and the masks of dropout, for make_model_vectors.py."""
import numpy as np
import torch
import torch.nn.functional as F

LAYER_NORM_EPS = 1e-5
WORDS = (1 << 32) - 1


def shapes(c):
    hidden, wide = c["hidden"], c["ffn_width"]
    s = {"bert.embeddings.word_embeddings.weight": (c["vocabulary"], hidden), "cls.predictions.bias": (c["vocabulary"],),
         "bert.embeddings.position_embeddings.weight": (c["sequence_max"], hidden),
         "bert.embeddings.token_type_embeddings.weight": (c["token_types"], hidden)}

    def linear(module, rows, columns):
        s.update({module + ".weight": (rows, columns), module + ".bias": (rows,)})

    def norm(module):
        s.update({module + ".LayerNorm.weight": (hidden,), module + ".LayerNorm.bias": (hidden,)})

    for module in ["bert.embeddings", "cls.predictions.transform"]:
        norm(module)
    linear("cls.predictions.transform.dense", hidden, hidden)
    for i in range(c["layers"]):
        p = f"bert.encoder.layer.{i}."
        for part in ("query", "key", "value"):
            linear(p + "attention.self." + part, hidden, hidden)
        linear(p + "attention.output.dense", hidden, hidden)
        linear(p + "intermediate.dense", wide, hidden)
        linear(p + "output.dense", hidden, wide)
        norm(p + "attention.output")
        norm(p + "output")
    return s


def philox(counters, key):
    """Philox 4x32-10 (Salmon et al. 2011) of counters: four arrays; a key of two numbers. Four arrays."""
    c, k = [np.asarray(x, np.uint64) for x in counters], list(key)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        word, high = np.uint64(WORDS), np.uint64(32)
        c = [(b >> high) ^ c[1] ^ np.uint64(k[0]), b & word, (a >> high) ^ c[3] ^ np.uint64(k[1]), a & word]
        k = [(k[0] + 0x9E3779B9) & WORDS, (k[1] + 0xBB67AE85) & WORDS]
    return c


def kept(rate, stream, key, head, rows, columns):
    """What dropout multiplies elements with, as kernels/dropout.h says it: 64 neighbours are four words of 16 counters."""
    row, i = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    words = philox((i // 64 * 16 + i % 16, row, np.full_like(i, stream), np.full_like(i, head)), (key & WORDS, key >> 32))
    word = np.choose(i % 64 // 16, words)
    rate = float(np.float32(rate))
    return torch.from_numpy((word >= np.floor(rate * 2.0 ** 32)) / (1 - rate))


def logits(c, w, batch, fault=None):
    tokens = batch.tokens
    b, t = tokens.shape
    heads, d = c["heads"], c["hidden"] // c["heads"]
    dtype = w["cls.predictions.bias"].dtype
    streams = iter(range(1 << 20))
    act = (lambda x: F.gelu(x, approximate="tanh")) if fault == "gelu_tanh" else F.gelu

    def linear(x, module):
        bias = w[module + ".bias"]
        return F.linear(x, w[module + ".weight"], None if fault == "biases_left_out" else bias)

    def norm(x, module):
        if fault == "layer_norm_unbiased":
            mean, deviation = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True) + LAYER_NORM_EPS).sqrt()
            return (x - mean) / deviation * w[module + ".LayerNorm.weight"] + w[module + ".LayerNorm.bias"]
        return F.layer_norm(x, x.shape[-1:], w[module + ".LayerNorm.weight"], w[module + ".LayerNorm.bias"], LAYER_NORM_EPS)

    def dropout(x, rate):  # x [b, t, columns], or [b, heads, t, columns]
        if rate == 0:
            return x
        stream = next(streams)
        if x.dim() == 3:
            masks = [kept(rate, stream, key, 0, *x.shape[1:]) for key in batch.keys]
        else:
            masks = [torch.stack([kept(rate, stream, key, h, *x.shape[2:]) for h in range(heads)]) for key in batch.keys]
        mask = torch.stack(masks)
        if fault == "dropout_not_scaled":
            mask = (mask != 0).double()
        return x * mask.to(dtype)

    # A padded row is two documents: the text, and what is behind it.
    position = torch.arange(t)
    behind = position[None, :] >= torch.tensor(batch.lengths)[:, None]
    seen = behind[:, None, :, None] == behind[:, None, None, :]
    if fault == "padding_is_seen":
        seen = torch.ones_like(seen)
    if fault == "later_tokens_hidden":
        seen = seen & (position[None, :] <= position[:, None])

    def attend(x, p):
        q, k, v = (linear(x, p + n).view(b, t, heads, d).transpose(1, 2) for n in ("query", "key", "value"))
        if c["attention_dropout"] == 0:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            return y.transpose(1, 2).reshape(b, t, -1)
        scores = (q @ k.transpose(-1, -2)).to(dtype) * d ** -0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return (dropout(weights, c["attention_dropout"]) @ v).transpose(1, 2).reshape(b, t, -1)

    e = "bert.embeddings."
    types = w[e + "token_type_embeddings.weight"][1 if fault == "token_type_1" else 0]
    learnt = w[e + "position_embeddings.weight"][1:t + 1] if fault == "positions_from_1" else (
        w[e + "position_embeddings.weight"][:t])
    x = F.embedding(tokens, w[e + "word_embeddings.weight"]) + types + learnt
    x = dropout(norm(x, "bert.embeddings"), c["dropout"])
    for i in range(c["layers"]):
        p = f"bert.encoder.layer.{i}."
        y = dropout(linear(attend(x, p + "attention.self."), p + "attention.output.dense"), c["dropout"])
        x = x + norm(y, p + "attention.output") if fault == "norm_before_adding" else norm(x + y, p + "attention.output")
        y = dropout(linear(act(linear(x, p + "intermediate.dense")), p + "output.dense"), c["dropout"])
        x = x + norm(y, p + "output") if fault == "norm_before_adding" else norm(x + y, p + "output")
    x = norm(act(linear(x, "cls.predictions.transform.dense")), "cls.predictions.transform")
    head = w[e + "word_embeddings.weight"]
    if fault == "head_gradient_lost":
        head = head.detach()
    bias = w["cls.predictions.bias"]
    return F.linear(x, head, torch.zeros_like(bias) if fault == "head_bias_left_out" else bias)


def of_transformers(c):
    import transformers
    config = transformers.BertConfig(
        vocab_size=c["vocabulary"], hidden_size=c["hidden"], intermediate_size=c["ffn_width"],
        num_hidden_layers=c["layers"], num_attention_heads=c["heads"], max_position_embeddings=c["sequence_max"],
        type_vocab_size=c["token_types"], layer_norm_eps=LAYER_NORM_EPS, attn_implementation="eager")
    return transformers.BertForMaskedLM(config).double().eval()
