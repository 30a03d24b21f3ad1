#!/usr/bin/env python3
"""Our tokens are those of the packages `tokenizers` and `sentencepiece`, with tokenizers that these make and train.

    ISTHMUS_PYTHON=/path/to/python tokenizers_test.py TOKENIZE_PROGRAM
    … tokenizers_test.py TOKENIZE_PROGRAM --write-vectors   makes tests/runtime/tokenizer_vectors anew

Needs `tokenizers` and `sentencepiece`, from the interpreter that ISTHMUS_PYTHON names (this one if unset); skips loudly
without.
"""
import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77  # ctest: SKIP_RETURN_CODE

if os.environ.get("ISTHMUS_PYTHON") and not os.environ.get("ISTHMUS_PYTHON_RUNS"):
    os.environ["ISTHMUS_PYTHON_RUNS"] = "1"
    os.execv(os.environ["ISTHMUS_PYTHON"], [os.environ["ISTHMUS_PYTHON"], *sys.argv])

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
try:
    import sentencepiece
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as missing:
    print(f"SKIPPED: {missing}. Set ISTHMUS_PYTHON to a Python that has tokenizers and sentencepiece.")
    sys.exit(SKIPPED)

VECTORS = pathlib.Path(__file__).with_name("tokenizer_vectors")
TEXTS = "/usr/share/debian-reference/debian-reference.{}.txt.gz"
LANGUAGES = ("en", "de", "fr", "ja")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
SPECIAL = {"llama3": ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
           "qwen": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "gpt2": ("<|endoftext|>",)}
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def quickstart_texts():
    texts = []
    for language in LANGUAGES:
        with gzip.open(TEXTS.format(language), "rt", encoding="utf-8") as file:
            texts.append(file.read())
    return texts


def characters(seed, bert=()):
    """Whole numbers and characters, as a random string takes them: from all of Unicode, and from where rules differ."""
    drawn = random.Random(seed)
    blocks = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600), (0x900, 0xE00), (0x1100, 0x1200),
              (0x2000, 0x2100), (0x3040, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAE00), (0x1F300, 0x1F700)]
    spaces = " \t\n\r\v\f\u0085\u00a0\u1680\u180e\u2003\u2028\u3000"

    def any_character():
        while True:
            code = drawn.randrange(0x110000)
            if not 0xD800 <= code < 0xE000:
                return chr(code)

    def text():
        kind, pieces = drawn.randrange(4), []
        first, last = drawn.choice(blocks)
        for _ in range(drawn.randrange(1, 40)):
            pick = drawn.randrange(8)
            if pick == 0:
                pieces.append(drawn.choice(spaces) * drawn.randrange(1, 4))
            elif pick == 1:
                pieces.append(drawn.choice(["'s", "'S", "'LL", "'ſ", "’s", "don't", "12345", "٣٤", "Ⅷ", "e\u0301\u0323"]))
            elif pick == 2 and kind != 0:
                pieces.append(drawn.choice(["<|endoftext|>", "<|im_start|>", "<|eot_id|>", "<|", "|>", "<extra>", "Ångström", *bert]))
            elif kind == 1:
                pieces.append(any_character())
            elif kind == 2:
                pieces.append("".join(chr(drawn.randrange(first, last)) for _ in range(drawn.randrange(1, 6))))
            else:
                pieces.append(drawn.choice(["the ", "Wort", "à", "。", "日本", "\n\n", "  ", "(x)", "ß", "--", "0", "\u0308"]))
        return "".join(pieces)

    return text


def random_texts(count=10_000, seed=7, bert=()):
    text = characters(seed, bert)
    return [text() for _ in range(count)]


def every_character():
    """What parts words: each character after a letter and before a digit."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    return ["".join(f"a{chr(code)}1" for code in codes[i:i + 512]) for i in range(0, len(codes), 512)]


def marks():
    """Normal form C: each character that may be a mark, or begin or end a pair, among marks of other classes."""
    codes = [*range(0xC0, 0x3400), *range(0xA000, 0xAC10), *range(0xD7A0, 0xD800), *range(0xF900, 0x20000), *range(0x2F800, 0x2FA20),
             *range(0xE0000, 0xE0200)]
    return ["".join(f"\u0f00\u0345{chr(code)}\u0334e{chr(code)}\u0301" for code in codes[i:i + 512])
            for i in range(0, len(codes), 512)]


def bpe(kind, vocabulary, texts):
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    if kind == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        pattern = Regex(LLAMA3 if kind == "llama3" else QWEN)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"),
                                                           pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if kind == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL[kind]])
    tokenizer.add_tokens([AddedToken("<extra>", normalized=False), AddedToken("<extra> <|", normalized=False),
                          AddedToken("Ångström", normalized=True)])
    if kind == "llama3":
        begin = SPECIAL[kind][0]
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1",
                                          special_tokens=[(begin, tokenizer.token_to_id(begin))])])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def every_letter():
    """What BERT's normaliser makes of each character: after a letter, before one, and as a word; marks among others."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    return ["".join(f"a{chr(code)}b {chr(code)}\u302e\U0001d165\u0301 " for code in codes[i:i + 512]) for i in range(0, len(codes), 512)]


def word_piece(kind, vocabulary, texts):
    """As bert-base-uncased and bert-base-cased are; "bare" has the other value of each setting."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=12 if kind == "bare" else 100))
    if kind == "bare":
        tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=True)
    else:
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=kind == "uncased")
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=kind != "bare")
    trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=list(BERT_SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("<extra>", normalized=False), AddedToken("Ångström", normalized=True)])
    around = [(name, tokenizer.token_to_id(name)) for name in ("[SEP]", "[CLS]")]
    if kind == "cased":
        tokenizer.post_processor = processors.BertProcessing(*around)
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around)
    return tokenizer


def with_every_character(path):
    """Each character of the planes in use is a piece, so that none hides in an unknown word."""
    written = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    vocab, added = written["model"]["vocab"], written["added_tokens"]
    written["added_tokens"] = [token for token in added if token["content"] in vocab]
    for code in (*range(0x21, 0x34000), *range(0xE0000, 0xE0200)):
        for piece in (chr(code), "##" + chr(code)) if not 0xD800 <= code < 0xE000 else ():
            vocab.setdefault(piece, len(vocab))
    pathlib.Path(path).write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")
    return Tokenizer.from_file(path)


def sentencepiece_model(folder, kind, vocabulary, byte_fallback, texts):
    prefix = os.path.join(folder, f"{kind}{byte_fallback}")
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=prefix, model_type=kind, vocab_size=vocabulary,
        byte_fallback=byte_fallback, character_coverage=0.9995, minloglevel=2, num_threads=1,
        normalization_rule_name="identity" if byte_fallback else "nmt_nfkc", remove_extra_whitespaces=not byte_fallback,
        user_defined_symbols=["<user>"], input_sentence_size=4000, shuffle_input_sentence=False)
    return prefix + ".model"


def ours(path, texts, *specials):
    done = subprocess.run([PROGRAM, path, *specials], input=json.dumps(texts), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def equally_likely(tokens, theirs, decode):
    """Another order of the same: between these, versions of SentencePiece choose differently."""
    return sorted(tokens) == sorted(theirs) and decode(tokens) == decode(theirs)


class SameTokens(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        self.quickstart = quickstart_texts()

    def assert_same(self, texts, read, theirs, decode, ties=False):
        for text, tokens in zip(texts, read["ids"], strict=True):
            if tokens != theirs(text) and not (ties and equally_likely(tokens, theirs(text), decode)):
                self.fail(f"{text!r}: {tokens}, not {theirs(text)}")
        for text, tokens, decoded in zip(texts, read["ids"], read["text"], strict=True):
            if "Ångström" not in text:  # theirs takes an added one for characters of bytes, or normalises it
                self.assertEqual(decoded, decode(tokens), text)

    def assert_same_ids(self, texts, read, theirs):
        for text, tokens in zip(texts, read["ids"], strict=True):
            self.assertEqual(tokens, theirs(text))

    def test_of_byte_level_bpe(self):
        for kind in SPECIAL:
            tokenizer = bpe(kind, 6000, self.quickstart)
            path = os.path.join(self.folder, "tokenizer.json")
            tokenizer.save(path)
            short = [*random_texts(), "", "<|endoftext|>"]
            long = [*self.quickstart, *(every_character() + marks() if kind == "qwen" else [])]
            for specials, texts in (("", short + long), ("specials", short)):
                with self.subTest(kind, specials=specials):
                    tokenizer.encode_special_tokens = not specials
                    read = ours(path, texts, *filter(None, [specials]))
                    begin = tokenizer.token_to_id("<|begin_of_text|>") if kind == "llama3" else -1
                    self.assertEqual((read["vocabulary"], read["begin"]), (tokenizer.get_vocab_size(), begin))
                    self.assert_same(texts, read, lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
                                     lambda ids: tokenizer.decode(ids, skip_special_tokens=True))

    def test_of_word_piece(self):
        for kind in ("uncased", "cased", "bare"):
            tokenizer = word_piece(kind, 3000, self.quickstart)
            path = os.path.join(self.folder, "tokenizer.json")
            tokenizer.save(path)
            texts = [*random_texts(bert=BERT_SPECIAL), "", "[MASK]", "a" * 100, "a" * 101, *self.quickstart]
            for specials in ("", "specials"):
                with self.subTest(kind, specials=specials):
                    tokenizer.encode_special_tokens = not specials
                    read = ours(path, texts, *filter(None, [specials]))
                    around = tokenizer.encode("", add_special_tokens=True).ids
                    self.assertEqual((read["vocabulary"], [read["begin"], read["end"]]), (tokenizer.get_vocab_size(), around))
                    self.assert_same(texts, read, lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
                                     lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
            with self.subTest(kind, characters="all"):
                tokenizer = with_every_character(path)
                self.assert_same_ids(every_letter(), ours(path, every_letter(), "specials"),
                                     lambda text: tokenizer.encode(text, add_special_tokens=False).ids)

    def test_of_sentencepiece(self):
        for kind, byte_fallback in (("unigram", False), ("unigram", True), ("bpe", True), ("bpe", False)):
            with self.subTest(kind, byte_fallback=byte_fallback):
                path = sentencepiece_model(self.folder, kind, 3000, byte_fallback, self.quickstart)
                model = sentencepiece.SentencePieceProcessor(model_file=path)
                texts = [*(p for text in self.quickstart for p in text.split("\n\n")), *random_texts(), "", "<user> x", "<s>"]
                self.assert_same(texts, ours(path, texts), model.encode, model.decode, ties=kind == "unigram")


def write_vectors():
    """Small tokenizers, texts and their tokens, for machines without these packages (tokenizer_test.cc)."""
    VECTORS.mkdir(exist_ok=True)
    texts = quickstart_texts()
    short = [text[i:i + 200] for text in texts for i in (20_000, 90_000)] + random_texts(70, 11) + ["", " ", "<|endoftext|>"]
    lines = [{"text": text} for text in short]
    for kind in SPECIAL:
        tokenizer = bpe(kind, 420, [text[:100_000] for text in texts])
        tokenizer.encode_special_tokens = True
        tokenizer.save(str(VECTORS / f"{kind}.json"), pretty=False)
        for line in lines:
            line[f"{kind}.json"] = tokenizer.encode(line["text"], add_special_tokens=False).ids
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("unigram", "bpe"):
            path = sentencepiece_model(folder, kind, 420, True, [text[:40_000] for text in texts[:3]])
            (VECTORS / f"{kind}.model").write_bytes(pathlib.Path(path).read_bytes())
            model = sentencepiece.SentencePieceProcessor(model_file=path)
            for line in lines:
                line[f"{kind}.model"] = model.encode(line["text"])
    for kind in ("uncased", "cased"):
        tokenizer = word_piece(kind, 420, [text[:100_000] for text in texts])
        tokenizer.encode_special_tokens = True
        tokenizer.save(str(VECTORS / f"bert_{kind}.json"), pretty=False)
        for line in lines:
            line[f"bert_{kind}.json"] = tokenizer.encode(line["text"], add_special_tokens=False).ids
    written = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (VECTORS / "tokens.jsonl.gz").write_bytes(gzip.compress(written.encode(), mtime=0))


if __name__ == "__main__":
    if sys.argv[-1] == "--write-vectors":
        write_vectors()
    else:
        PROGRAM = sys.argv.pop()
        unittest.main()
