"""A tokenizer from the metadata of a GGUF file: byte-level BPE ("gpt2"), SentencePiece BPE ("llama"), SentencePiece
unigrams ("t5") or pieces of words ("bert")."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from cadence.core.errors import TokenizerError
from cadence.core.merges import merges_by_score
from cadence.core.shown import cut as shortened
from cadence.core.shown import shown
from cadence.gguf.file import GGUFFile
from cadence.gguf.splits import SPLITS
from cadence.gguf.unigram import unigram
from cadence.gguf.word_pieces import word_pieces

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # of tokenizer.ggml.token_type
_PADDING = re.compile(r"\[PAD\d+\]")  # fills the vocabulary up to the rows of the embedding
_MARK = "▁"  # SentencePiece's space
_BRACKETS = re.compile(r"\[(CLS|SEP|MASK|UNK|PAD|unused\d+)\]")

_SPLIT_OF_ARCHITECTURE = dict.fromkeys(("qwen2", "qwen2vl", "qwen3"), "qwen2")  # files without `tokenizer.ggml.pre`
_NO_RSTRIP = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3, whose other special tokens swallow spaces after them


class _Vocabulary:
    """`tokenizer.ggml.*` of one file."""

    def __init__(self, file: GGUFFile) -> None:
        self.path = file.path
        self._metadata = file.metadata
        self.architecture = str(file.metadata.get("general.architecture", ""))
        self.tokens = self._list("tokens")
        types = self.get("token_type")
        if types is not None and len(types) != len(self.tokens):
            raise TokenizerError(f"{self.path}: {len(types)} token types for {len(self.tokens)} tokens")
        self.types_np = np.ones(len(self.tokens), np.int32) if types is None else np.asarray(types)  # [tokens]

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    @property
    def frames(self) -> bool:
        """Whether the backend itself puts special tokens around a text, and between two: encoders do."""
        return self.architecture == "bert" or self.get("model") == "bert"

    def of_type(self, *types: int) -> list[str]:
        return [self.tokens[index] for index in np.flatnonzero(np.isin(self.types_np, types))]

    def role(self, key: str) -> tuple[str, int]:
        """(token, id) of `bos_token_id` and its like; ("", -1) where the file names none."""
        token_id = self.get(key)
        if token_id is None:
            return "", -1
        if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
            raise TokenizerError(
                f"{self.path}: tokenizer.ggml.{key} is {shown(token_id)}, of {len(self.tokens)} tokens"
            )
        return self.tokens[token_id], token_id

    def scores_np(self) -> np.ndarray:
        """[tokens] float32."""
        scores = self.get("scores")
        if scores is None or len(scores) != len(self.tokens):
            raise TokenizerError(f"{self.path}: tokenizer.ggml.scores must give one score for each token")
        return np.asarray(scores, np.float32)

    def merges(self) -> list[tuple[str, str]]:
        pairs = [tuple(merge.split(" ")) for merge in self._list("merges")]
        if any(len(pair) != 2 for pair in pairs):
            raise TokenizerError(f"{self.path}: every entry of tokenizer.ggml.merges must hold two tokens")
        return pairs  # type: ignore[return-value]

    def _list(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise TokenizerError(f"{self.path}: no tokenizer in this file (tokenizer.ggml.{key} is missing)")
        return value


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """What a file says of its tokens."""

    backend: Backend
    special: dict[str, Any]  # fields of SpecialTokens (cadence/text)
    templates: dict[str, str]  # name -> chat template; the one without a name is "default"
    max_length: int | None  # tokens; None = the file does not say


def gguf_tokenizer(file: GGUFFile) -> GGUFTokenizer:
    vocabulary = _Vocabulary(file)
    kind = vocabulary.get("model")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise TokenizerError(
            f"{file.path}: tokenizer.ggml.model {shown(kind)} is not supported; supported: {', '.join(_KINDS)}"
        )
    try:
        backend, add_bos = _KINDS[kind](vocabulary)
    except TokenizerError:
        raise
    except Exception as error:  # tokenizers raises bare Exception
        raise TokenizerError(f"{file.path}: tokens and merges do not fit together: {shortened(str(error))}") from None
    _add_tokens(backend, vocabulary)
    if vocabulary.frames and kind != "bert":
        _frame(backend, vocabulary)
    length = file.metadata.get(f"{vocabulary.architecture}.context_length")
    return GGUFTokenizer(
        backend, _special_tokens(vocabulary, add_bos), _templates(file), None if length is None else int(length)
    )


def _byte_level(vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    """The backend, and whether text begins with bos unless the file says otherwise."""
    name = vocabulary.get("pre") or _SPLIT_OF_ARCHITECTURE.get(vocabulary.architecture, "default")
    if name not in SPLITS:
        raise TokenizerError(
            f"{vocabulary.path}: tokenizer.ggml.pre {shown(name)} is not known; known: {', '.join(SPLITS)}"
        )
    split = SPLITS[name]
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    for token in vocabulary.of_type(_UNUSED):
        if _PADDING.fullmatch(token):
            del vocab[token]
    backend = Backend(models.BPE(vocab, vocabulary.merges(), ignore_merges=split.whole_words))
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.pre_tokenizer(bool(vocabulary.get("add_space_prefix", False)))
    backend.decoder = decoders.ByteLevel()
    return backend, split.add_bos


def _words(vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    """Older files call the token before a text bos, and the one after it eos."""
    first = vocabulary.role("cls_token_id")[0] or vocabulary.role("bos_token_id")[0]
    last = vocabulary.role("seperator_token_id")[0] or vocabulary.role("eos_token_id")[0]
    unknown = vocabulary.role("unknown_token_id")[0]
    if not (first and last and unknown):
        raise TokenizerError(
            f"{vocabulary.path}: the tokens before and after a text, and the unknown one, are not named"
        )
    special = {first, last, unknown, *vocabulary.of_type(_UNKNOWN, _CONTROL, _UNUSED)}
    special |= {token for token in vocabulary.tokens if _BRACKETS.fullmatch(token)}
    return word_pieces(vocabulary.tokens, sorted(special), unknown, (first, last)), False


def _sentencepiece(vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    """The merge that yields the best-scored token goes first, so scores become ranks of merges."""
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    merges = (
        vocabulary.merges() if vocabulary.get("merges") else merges_by_score(vocabulary.tokens, vocabulary.scores_np())
    )
    unknown = (vocabulary.of_type(_UNKNOWN) or [""])[0] or vocabulary.role("unknown_token_id")[0]
    backend = Backend(models.BPE(vocab, merges, unk_token=unknown or None, fuse_unk=True, byte_fallback=True))
    spaces, back = normalizers.Replace(" ", _MARK), decoders.Replace(_MARK, " ")
    if vocabulary.get("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_MARK), spaces])
        strip = [decoders.Strip(" ", 1, 0)]
    else:
        backend.normalizer, strip = spaces, []
    backend.decoder = decoders.Sequence([back, decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend, True


def _unigrams(vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    pieces = list(zip(vocabulary.tokens, vocabulary.scores_np().tolist(), strict=True))
    _, unknown = vocabulary.role("unknown_token_id")
    if unknown < 0:
        raise TokenizerError(f"{vocabulary.path}: tokenizer.ggml.unknown_token_id is missing")
    characters = vocabulary.get("precompiled_charsmap")
    table = b"" if characters is None else np.asarray(characters, np.uint8).tobytes()
    return unigram(pieces, unknown, table), False


def _frame(backend: Backend, vocabulary: _Vocabulary) -> None:
    """As RoBERTa and XLM-R: the last token of a text stands twice between two."""
    first, first_id = vocabulary.role("bos_token_id")
    last, last_id = vocabulary.role("eos_token_id")
    if first_id < 0 or last_id < 0:
        raise TokenizerError(f"{vocabulary.path}: the tokens before and after a text are not named")
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 {last}:0 $B:0 {last}:0",
        special_tokens=[(first, first_id), (last, last_id)],
    )


def _add_tokens(backend: Backend, vocabulary: _Vocabulary) -> None:
    """Tokens that are recognised as written, before any splitting. They keep the ids they have in the vocabulary."""
    swallow = vocabulary.architecture == "phi3" and vocabulary.get("model") == "llama"

    def added(token: str, special: bool) -> AddedToken:
        return AddedToken(token, special=special, normalized=False, rstrip=swallow and token not in _NO_RSTRIP)

    backend.add_special_tokens([added(token, True) for token in vocabulary.of_type(_CONTROL, _UNKNOWN)])
    backend.add_tokens([added(token, False) for token in vocabulary.of_type(_USER_DEFINED)])


def _special_tokens(vocabulary: _Vocabulary, add_bos: bool) -> dict[str, Any]:
    bos, bos_id = vocabulary.role("bos_token_id")
    eos, eos_id = vocabulary.role("eos_token_id")
    ends = [vocabulary.role(f"{name}_token_id")[1] for name in ("eos", "eot", "eom")]
    return {
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": vocabulary.role("padding_token_id")[0],
        "unk_token": vocabulary.role("unknown_token_id")[0],
        "bos_id": bos_id,
        "eos_id": eos_id,
        "add_bos": not vocabulary.frames and bool(vocabulary.get("add_bos_token", add_bos)) and bos_id >= 0,
        "add_eos": not vocabulary.frames and bool(vocabulary.get("add_eos_token", False)) and eos_id >= 0,
        "extra": {
            "additional_special_tokens": vocabulary.of_type(_CONTROL),
            "eos_token_ids": [token_id for token_id in dict.fromkeys(ends) if token_id >= 0],
        },
    }


_KINDS: dict[str, Callable[[_Vocabulary], tuple[Backend, bool]]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "t5": _unigrams,
    "bert": _words,
}


def _templates(file: GGUFFile) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    found = {key[len(prefix) + 1 :] or "default": text for key, text in file.metadata.items() if key.startswith(prefix)}
    return {name: text for name, text in found.items() if isinstance(text, str)}
