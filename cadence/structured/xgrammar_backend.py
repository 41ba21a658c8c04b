"""Grammars by xgrammar: compiled in full, with the masks of most states worked out ahead."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from cadence.core.grammar import GrammarKind, GrammarSpec
from cadence.structured.canonical import CanonicalTokens, Encode
from cadence.structured.grammar import MaskArray, last_word, mask_words
from cadence.structured.vocabulary import Vocabulary

SLOW_SECONDS = 0.1  # to accept a token and work out the mask after it
MOST_SLOW = 8  # in a row: a busy machine may take that long for any of them, but hardly for all
FEW = 16  # words of a mask with any token: forced text has no more beginnings than that


class XgrammarTables:
    """The vocabulary as xgrammar wants it. In structural tags special tokens are text: a tag may begin with one."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode, package: Any) -> None:
        self.package = package
        self.canonical = CanonicalTokens(encode)
        self._vocabulary = vocabulary
        self._infos: dict[bool, tuple[Any, list[bytes]]] = {}  # by whether special tokens are text

    def info(self, kind: GrammarKind) -> Any:
        return self._of(kind)[0]

    def pieces(self, kind: GrammarKind) -> list[bytes]:
        """b"" for a token that is never allowed."""
        return self._of(kind)[1]

    def _of(self, kind: GrammarKind) -> tuple[Any, list[bytes]]:
        with_special = kind is GrammarKind.STRUCTURAL_TAG
        if with_special not in self._infos:
            self._infos[with_special] = self._made(with_special)
        return self._infos[with_special]

    def _made(self, with_special: bool) -> tuple[Any, list[bytes]]:
        vocabulary, package = self._vocabulary, self.package
        pieces = list(vocabulary.pieces)
        for token, name in vocabulary.special.items() if with_special else ():
            pieces[token] = name
        stops = list(vocabulary.stop_ids)
        # Without the padding after the last token, which would be gone through for every mask and token.
        size = 1 + max([*(token for token, piece in enumerate(pieces) if piece), *stops], default=0)
        raw = package.VocabType.RAW
        return package.TokenizerInfo(pieces[:size], raw, vocab_size=size, stop_token_ids=stops), pieces[:size]


def compile_with_xgrammar(spec: GrammarSpec, tables: XgrammarTables) -> str:
    """-> the compiled grammar as JSON. Raises what xgrammar raises."""
    # One thread: the limits on time are those of a process.
    compiler = tables.package.GrammarCompiler(tables.info(spec.kind), max_threads=1, cache_enabled=False)
    return str(_compiled(spec, compiler).serialize_json())


def _compiled(spec: GrammarSpec, compiler: Any) -> Any:
    match spec.kind:
        case GrammarKind.JSON_OBJECT:
            return _json(spec, '{"type": "object"}', compiler)
        case GrammarKind.JSON_SCHEMA:
            return _json(spec, spec.text, compiler)
        case GrammarKind.REGEX:
            return compiler.compile_regex(spec.text)
        case GrammarKind.CHOICE:
            return compiler.compile_grammar(choice_as_ebnf(json.loads(spec.text)))
        case GrammarKind.EBNF:
            return compiler.compile_grammar(spec.text)
        case GrammarKind.LARK:
            return compiler.compile_lark(spec.text)
        case GrammarKind.STRUCTURAL_TAG:
            return compiler.compile_structural_tag(spec.text)


def _json(spec: GrammarSpec, schema: str, compiler: Any) -> Any:
    if spec.whitespace_pattern:
        raise ValueError("a pattern for white space needs the backend llguidance")
    return compiler.compile_json_schema(schema, any_whitespace=spec.any_whitespace)


def choice_as_ebnf(choices: list[str]) -> str:
    """JSON writes a string as EBNF does, but for the characters that only JSON escapes."""
    written = (json.dumps(choice, ensure_ascii=False).replace("\\/", "/") for choice in choices)
    return "root ::= " + " | ".join(written)


@dataclass(frozen=True, slots=True)
class XgrammarGrammar:
    compiled: Any
    package: Any
    pieces: list[bytes]
    canonical: CanonicalTokens
    num_bytes: int

    @classmethod
    def read(cls, spec: GrammarSpec, data: str, tables: XgrammarTables) -> XgrammarGrammar:
        """From what `compile_with_xgrammar` gave in a process with the same vocabulary."""
        package = tables.package
        compiled = package.CompiledGrammar.deserialize_json(data, tables.info(spec.kind))
        num_bytes = max(int(compiled.memory_size_bytes), len(data))  # what it says leaves out most of a structural tag
        return cls(compiled, package, tables.pieces(spec.kind), tables.canonical, num_bytes)

    def position(self) -> XgrammarPosition:
        return XgrammarPosition(self.package.GrammarMatcher(self.compiled), self.pieces, self.canonical)


class XgrammarPosition:
    """xgrammar has no limits of its own: what takes too long too often goes no further."""

    def __init__(self, matcher: Any, pieces: list[bytes], canonical: CanonicalTokens) -> None:
        self.error = ""
        self._num_slow = 0  # the last masks, in a row
        self._seconds = 0.0  # since the last mask
        self._matcher = matcher
        self._pieces = pieces
        self._canonical = canonical
        self._words = mask_words(len(pieces))
        self._last_word = last_word(len(pieces))

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def accept(self, token: int) -> bool:
        if self.error or token >= len(self._pieces) or not self._pieces[token]:
            return False
        begun = time.perf_counter()
        accepted = bool(self._matcher.accept_token(token))
        self._seconds += time.perf_counter() - begun
        return accepted

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def fill(self, mask_np: MaskArray) -> None:
        if self.error:
            mask_np[:] = 0
            return
        words, begun = self._words, time.perf_counter()
        self._matcher.fill_next_token_bitmask(mask_np[:words].reshape(1, -1))
        self._judge(self._seconds + time.perf_counter() - begun)
        mask_np[words - 1] &= self._last_word
        mask_np[words:] = 0
        if 1 < np.count_nonzero(mask_np) <= FEW:
            self._keep_canonical(mask_np)

    def _judge(self, seconds: float) -> None:
        self._seconds = 0.0
        self._num_slow = self._num_slow + 1 if seconds > SLOW_SECONDS else 0
        if self._num_slow > MOST_SLOW:
            self.error = f"one token after another takes more than {SLOW_SECONDS:.3g} s"

    def _keep_canonical(self, mask_np: MaskArray) -> None:
        """Of the tokens that forced text can begin with, the one that the tokenizer begins it with."""
        text = self.forced_text()
        token = self._canonical.first(text) if text else -1
        if token >= 0 and int(mask_np[token // 32]) >> token % 32 & 1:
            mask_np[:] = 0
            mask_np.view(np.uint32)[token // 32] = 1 << token % 32

    def forced_text(self) -> bytes:
        try:
            return str(self._matcher.find_jump_forward_string()).encode()
        except UnicodeDecodeError:  # it begins within a character
            return b""
