"""Tiny tokenizers of every kind, trained on the spot and saved as models carry them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog does not mind; it's used to foxes.",
    "A sequence of tokens, a sequence of words: 12 monkeys, 300 tokens, 4096 blocks!",
    "Größe, naïve café, señor, façade. 東京は日本の首都です。 Привет, мир. 안녕하세요.",
    "    indented\n\tcode(x) == y  # with   several    spaces\n\n\n",
] * 4
SPECIAL = ["<unk>", "<s>", "</s>"]
CONTROL = "<|turn|>"  # special, without a role
PLAIN_ADDED = "<tool>"  # added, but not special: text like any other


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _with_added(tokenizer)


def byte_fallback(prefix_space: bool = True) -> Tokenizer:
    """As Llama 2 and Mistral; without the prefix space, as Gemma. Most characters are bytes."""
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix_space else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=450, special_tokens=SPECIAL + bytes_, limit_alphabet=60, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.to_str())  # byte tokens are no special tokens: they were only to take the first ids
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in SPECIAL]
    return _with_added(Tokenizer.from_str(json.dumps(state)))


def metaspace() -> Tokenizer:
    """As T5 and its like: unigram with spaces written as marks."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _with_added(tokenizer)


def wordpiece() -> Tokenizer:
    """A decoder that does not work token by token."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _with_added(tokenizer)


KINDS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "byte_fallback_no_prefix": lambda: byte_fallback(prefix_space=False),
    "metaspace": metaspace,
    "wordpiece": wordpiece,
}


def save(tokenizer: Tokenizer, directory: Path, **config: Any) -> Path:
    """tokenizer.json and tokenizer_config.json, with bos, eos and unk named unless `config` says otherwise."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **roles, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def _with_added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(CONTROL, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(PLAIN_ADDED, normalized=False)])
    return tokenizer
