"""Tokenizers read from GGUF metadata give the ids that `transformers` and `tokenizers` give for the same vocabulary."""

from __future__ import annotations

import hashlib
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from cadence.core.errors import TokenizerError
from cadence.gguf.splits import SPLITS
from cadence.text.load import load_gguf_tokenizer
from tests.helpers.gguf_files import write_gguf
from tests.helpers.smollm2 import hf_tokenizer, smollm2_path

TEXTS = [
    "",
    " ",
    "Hello, world! It's 12345 o'clock; I'LL pay $1,000.50 (50%)",
    "  two  spaces\n\n\tand a tab   \r\n trailing   ",
    "日本語のテキスト und Übermaß, naïve café, Привет мир, שלום, مرحبا",
    "emoji 👩‍👩‍👧 🇫🇷 ½ ٣٤ x² — “quotes” …",
    "def f(x):\n    return x ** 2  # ok\n",
    "<|im_start|>user\nhi <|im_end|>\n<|im_start|>assistant\n",
    "e\u0301\u0327 zero\u200bwidth \x00\x7f\ufffd",
]
_PIECES = [
    "a",
    "The ",
    "ing",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "7",
    " 42",
    "'s",
    "'",
    "é",
    "ß ",
    "日",
    "👍",
    "½",
    ".",
    "!?",
    "_",
]


def varied_texts(count: int) -> list[str]:
    pick = random.Random(0)
    return TEXTS + ["".join(pick.choices(_PIECES, k=30)) for _ in range(count)]


# SHA-256 of the ids that transformers gives for `varied_texts(300)`: it takes ten seconds to read the file.
SMOLLM2_IDS = "a5c3216a96e52a900f09d31373202064dee79eaaec93bb916149f3f9f5afe90a"


def digest(ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def test_smollm2_has_the_ids_of_transformers() -> None:
    ours, texts = load_gguf_tokenizer(smollm2_path()), varied_texts(300)
    ids = [ours.encode(text) for text in texts]
    assert digest(ids) == SMOLLM2_IDS, "`make wide` says which differ"
    assert [ours.decode(each, skip_special_tokens=False) for each in ids] == texts


@pytest.mark.wide
@pytest.mark.slow
def test_smollm2_equals_transformers() -> None:
    """transformers ignores `tokenizer.ggml.pre`, so it is given the word splits of the model's own tokenizer.json."""
    theirs, ours = hf_tokenizer(), load_gguf_tokenizer(smollm2_path())
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert digest([theirs.encode(text) for text in varied_texts(300)]) == SMOLLM2_IDS
    for text in varied_texts(300):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), repr(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert (ours.bos_token, ours.eos_token, ours.pad_token) == (theirs.bos_token, theirs.eos_token, theirs.pad_token)
    messages = [{"role": "user", "content": "Hi 12"}]
    chat = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ours.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == chat


def test_smollm2_facts() -> None:
    tokenizer = load_gguf_tokenizer(smollm2_path())
    assert tokenizer.encode("Hello world 12") == [19556, 905, 216, 33, 34]
    assert tokenizer.encode("<|im_start|>hi<|im_end|>") == [1, 6004, 2]
    assert tokenizer.decode([1, 6004, 2]) == "hi"
    assert (tokenizer.special.add_bos, tokenizer.eos_token_ids, tokenizer.model_max_length) == (False, {2}, 8192)
    assert len(tokenizer) == 49152


# Byte-level BPE


@pytest.fixture(scope="module")
def byte_level() -> tuple[list[str], list[str]]:
    """Tokens and merges learnt from the texts, with two control tokens and one user-defined token at the end."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(varied_texts(200), trainer)
    state: dict[str, Any] = json.loads(backend.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return [*tokens, "<|start|>", "<|end|>", "<tool>"], [" ".join(merge) for merge in state["merges"]]


def write_byte_level(path: Path, vocabulary: tuple[list[str], list[str]], **metadata: Any) -> Path:
    tokens, merges = vocabulary
    fields = {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [1] * (len(tokens) - 3) + [3, 3, 4],
        "merges": merges,
        "bos_token_id": len(tokens) - 3,
        "eos_token_id": len(tokens) - 2,
    }
    return write_gguf(path, "llama", {f"tokenizer.ggml.{key}": v for key, v in (fields | metadata).items()})


HF_SPLITS: dict[str, Any] = {  # as the tokenizer.json of GPT-2, SmolLM2, Bloom, Falcon, Llama 3 and Qwen 2 has them
    "bloom": lambda: _regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"),
    "falcon": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation(behavior="contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
        ]
    ),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": lambda: _regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": lambda: _regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


def _regex(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@pytest.mark.parametrize("pre", HF_SPLITS)
def test_word_splits(tmp_path: Path, byte_level: tuple[list[str], list[str]], pre: str) -> None:
    ours = load_gguf_tokenizer(write_byte_level(tmp_path / "t.gguf", byte_level, pre=pre, add_bos_token=False))
    tokens, merges = byte_level
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    theirs = Backend(models.BPE(vocab, pairs, ignore_merges=pre == "llama-bpe"))
    theirs.pre_tokenizer = HF_SPLITS[pre]()
    theirs.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        theirs.normalizer = normalizers.NFC()
    for text in varied_texts(100):
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids, repr(text)
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("pre", SPLITS)
def test_every_split_keeps_the_text(tmp_path: Path, byte_level: tuple[list[str], list[str]], pre: str) -> None:
    tokenizer = load_gguf_tokenizer(write_byte_level(tmp_path / "t.gguf", byte_level, pre=pre))
    for text in TEXTS[:-1]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_cased_splits() -> None:
    """Tekken and o200k cut before a capital; o200k keeps contractions with their word."""

    def words(pre: str, text: str) -> list[str]:
        split = pre_tokenizers.Split(Regex(SPLITS[pre].pattern), "isolated")
        return [word for word, _ in split.pre_tokenize_str(text)]

    assert words("tekken", "camelCase don't 123") == ["camel", "Case", " don", "'t", " ", "1", "2", "3"]
    assert words("gpt-4o", "camelCase don't 1234/x") == ["camel", "Case", " don't", " ", "123", "4", "/x"]


def test_added_tokens_and_bos(tmp_path: Path, byte_level: tuple[list[str], list[str]]) -> None:
    size = len(byte_level[0])
    path = write_byte_level(tmp_path / "t.gguf", byte_level, pre="llama-bpe", eot_token_id=size - 1)
    tokenizer = load_gguf_tokenizer(path)
    ids = tokenizer.encode("a<tool>b<|end|>")
    assert ids[0] == size - 3  # bos: the default of this kind of tokenizer
    assert (ids[2], ids[-1]) == (size - 1, size - 2)
    assert tokenizer.decode(ids) == "a<tool>b"  # user-defined tokens are text, control tokens are not
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|start|>a<tool>b<|end|>"
    assert tokenizer.eos_token_ids == {size - 2, size - 1}
    quiet = load_gguf_tokenizer(write_byte_level(tmp_path / "q.gguf", byte_level, pre="llama-bpe", add_bos_token=False))
    assert quiet.encode("a<tool>b<|end|>") == ids[1:]


def test_whole_words_need_no_merges(tmp_path: Path, byte_level: tuple[list[str], list[str]]) -> None:
    """As in Llama 3: a word of the vocabulary is one token although no merges lead to it."""
    tokens, merges = byte_level
    extended = (["Zqxj", *tokens], merges)
    whole = load_gguf_tokenizer(write_byte_level(tmp_path / "a.gguf", extended, pre="llama-bpe", add_bos_token=False))
    merged = load_gguf_tokenizer(write_byte_level(tmp_path / "b.gguf", extended, pre="dbrx", add_bos_token=False))
    assert whole.encode("Zqxj") == [0]
    assert len(merged.encode("Zqxj")) > 1


def test_padding_of_the_vocabulary_is_no_text(tmp_path: Path, byte_level: tuple[list[str], list[str]]) -> None:
    tokens, merges = byte_level
    padded = ([*tokens, "[PAD0]", "[PAD1]"], merges)
    types = [1] * (len(tokens) - 3) + [3, 3, 4, 5, 5]
    fields = {"pre": "gpt-2", "token_type": types, "bos_token_id": len(tokens) - 3, "eos_token_id": len(tokens) - 2}
    tokenizer = load_gguf_tokenizer(write_byte_level(tmp_path / "t.gguf", padded, **fields))
    assert tokenizer.decode([len(tokens), len(tokens) + 1]) == ""
    assert len(tokenizer) == len(tokens)


# SentencePiece BPE

BEST_FIRST = ["▁t", "he", "▁the", "er", "in", "▁in", "an", "▁an", "re"]
SPM = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    *((piece, -float(rank), 1) for rank, piece in enumerate(BEST_FIRST)),
    *((char, -100.0 - rank, 1) for rank, char in enumerate("▁theranicdo'é")),
    ("<|user|>", 0.0, 4),
]


def write_spm(path: Path, arch: str = "llama", **metadata: Any) -> Path:
    tokens, scores, types = (list(column) for column in zip(*SPM))
    fields = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types, "unknown_token_id": 0}
    fields |= {"bos_token_id": 1, "eos_token_id": 2}
    return write_gguf(path, arch, {f"tokenizer.ggml.{key}": value for key, value in (fields | metadata).items()})


def greedy_spm(text: str) -> list[str]:
    """SentencePiece's rule: again and again, join the neighbours whose union scores best, the leftmost of equals."""
    score = {piece: value for piece, value, kind in SPM if kind == 1}
    parts = list(text.replace(" ", "▁"))
    while True:
        best = max(((score[a + b], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in score), default=None)
        if best is None:
            break
        at = -best[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    bytes_of = [[p] if p in score else [f"<0x{b:02X}>" for b in p.encode()] for p in parts]
    return [piece for group in bytes_of for piece in group]


SPM_TEXTS = ["the", "in the other", "another  thing", "  a\n", "niño é 日本 👍", "here in an inn", "t", "rere the the"]


def test_sentencepiece_follows_the_scores(tmp_path: Path) -> None:
    tokenizer = load_gguf_tokenizer(write_spm(tmp_path / "t.gguf"))
    for text in SPM_TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", *greedy_spm(" " + text)], repr(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("") == [1]


def test_sentencepiece_without_leading_space_as_gemma_has_it(tmp_path: Path) -> None:
    path = write_spm(tmp_path / "t.gguf", add_space_prefix=False, add_bos_token=False)
    tokenizer = load_gguf_tokenizer(path)
    for text in SPM_TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.convert_ids_to_tokens(ids) == greedy_spm(text)
        assert tokenizer.decode(ids) == text


def test_phi3_special_tokens_swallow_space_after_them(tmp_path: Path) -> None:
    path = write_spm(tmp_path / "t.gguf", "phi3", add_bos_token=False)
    tokenizer = load_gguf_tokenizer(path)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("<|user|>\nthe<s> a"))
    assert tokens == ["<|user|>", "▁the", "<s>", "▁", "▁", "a"]


# Templates and refusals


def test_templates(tmp_path: Path) -> None:
    metadata = {"tokenizer.chat_template": "D{{ messages[0].content }}", "tokenizer.chat_template.tool_use": "T"}
    tokens, scores, _ = (list(column) for column in zip(*SPM))
    metadata |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores}
    tokenizer = load_gguf_tokenizer(write_gguf(tmp_path / "t.gguf", "llama", metadata))
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "Dx"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, tools=tools) == "T"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"pre": "martian"}, r"'martian' is not known; known: default, gpt-2"),
        ({"model": "rwkv"}, "'rwkv' is not supported; supported: gpt2, llama, t5, bert"),
        ({"tokens": []}, r"no tokenizer in this file \(tokenizer\.ggml\.tokens"),
        ({"merges": ["a b c"]}, "must hold two tokens"),
        ({"merges": ["qq zz"]}, "do not fit together"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000"),
        ({"token_type": [1]}, "1 token types for"),
        ({"model": "llama"}, "one score for each token"),
    ],
)
def test_refusals_name_the_file(
    tmp_path: Path, byte_level: tuple[list[str], list[str]], metadata: dict[str, Any], message: str
) -> None:
    fields = {"pre": "gpt-2", **metadata}
    if fields.get("model") == "llama":
        byte_level = (byte_level[0], [])
    with pytest.raises(TokenizerError, match=message) as caught:
        load_gguf_tokenizer(write_byte_level(tmp_path / "t.gguf", byte_level, **fields))
    assert "t.gguf" in str(caught.value)
