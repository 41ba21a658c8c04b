"""A compiled grammar, and where one request stands in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

MaskArray = npt.NDArray[np.int32]

MAX_FORCED = 64  # tokens looked ahead


def mask_words(vocab_size: int) -> int:
    """Words of 32 bits in a mask."""
    return (vocab_size + 31) // 32


def last_word(vocab_size: int) -> np.int32:
    """Of a mask that allows every token: bits past the vocabulary are 0."""
    return np.array((1 << (vocab_size - 1) % 32 + 1) - 1, np.uint32).view(np.int32)[()]


class Position(Protocol):
    """Where a text stands in a backend's grammar. Stop tokens are no part of a text: they are not accepted here."""

    def accept(self, token: int) -> bool:
        """False, and nothing is changed, where the grammar does not allow the token."""

    def rollback(self, count: int) -> None:
        """Takes the last `count` accepted tokens back."""

    def fill(self, mask_np: MaskArray) -> None:
        """The tokens that may come next, one bit each; stop tokens among them where the text is complete."""

    @property
    def complete(self) -> bool:
        """The text may end here."""

    def forced_text(self) -> bytes:
        """What must come next, as far as the backend knows it."""

    @property
    def error(self) -> str:
        """Why no token can follow, where the grammar took more work than it may; "" = it did not."""


class CompiledGrammar(Protocol):
    """What a backend makes of a spec. Immutable."""

    @property
    def num_bytes(self) -> int:
        """Of memory, about."""

    def position(self) -> Position:
        """At the beginning."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Compiled for one vocabulary; immutable, shared by requests."""

    digest: str  # of the spec
    backend: str
    compiled: CompiledGrammar
    vocab_size: int  # of logits
    stop_ids: frozenset[int]

    @property
    def num_bytes(self) -> int:
        return self.compiled.num_bytes

    def matcher(self) -> Matcher:
        return Matcher(self, self.compiled.position())


class Matcher:
    """One request's state: a function of the tokens accepted so far and of nothing else."""

    def __init__(self, grammar: Grammar, position: Position) -> None:
        self._grammar = grammar
        self._position = position
        self._stops = 0  # stop tokens accepted: the first ends the text, the others change nothing
        self._failure = ""  # what a backend raised: this output goes no further; others do
        self._stop_mask_np = np.zeros(mask_words(grammar.vocab_size), np.int32)
        for token in grammar.stop_ids:
            self._stop_mask_np.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        self._last_word = last_word(grammar.vocab_size)

    @property
    def num_words(self) -> int:
        """Of a mask."""
        return mask_words(self._grammar.vocab_size)

    @property
    def finished(self) -> bool:
        """The text is complete and a stop token was accepted. Only stop tokens may follow."""
        return self._stops > 0

    @property
    def error(self) -> str:
        """Why no token is left, where following the grammar took more work than it may; "" = it did not."""
        return self._failure or self._position.error

    def accept(self, token: int) -> bool:
        """False, and nothing is changed, where the grammar does not allow the token."""
        try:
            return self._accept(token)
        except Exception as error:  # whatever a backend raises is the matter of this output alone
            self._failure = f"{type(error).__name__}: {error}"
            return False

    def _accept(self, token: int) -> bool:
        if token in self._grammar.stop_ids:
            accepted = self._stops > 0 or self._position.complete
            self._stops += accepted
            return accepted
        return not self._stops and 0 <= token < self._grammar.vocab_size and self._position.accept(token)

    def rollback(self, count: int) -> None:
        """Takes the last `count` accepted tokens back. At most as many as were accepted."""
        stops = min(count, self._stops)
        self._stops -= stops
        if count > stops:
            self._position.rollback(count - stops)

    def fill(self, mask_np: MaskArray) -> None:
        """Which tokens may come next: int32 `[ceil(vocab_size / 32)]`, contiguous, a set bit = allowed. Bits past the
        vocabulary are 0. All are 0 where there is an `error`."""
        if self._stops:
            mask_np[:] = self._stop_mask_np
            return
        try:
            self._position.fill(mask_np)
            mask_np[-1] &= self._last_word
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
        if self._failure:
            mask_np[:] = 0

    def forced(self, most: int = MAX_FORCED) -> list[int]:
        """The tokens that must come next: as long as exactly one is allowed. The state is left as it was."""
        if self._stops:
            return []
        mask_np = np.empty(mask_words(self._grammar.vocab_size), np.int32)
        found: list[int] = []
        while len(found) < most and not self._stops:
            self.fill(mask_np)
            token = only_token(mask_np)
            if token < 0 or not self.accept(token):
                break
            found.append(token)
        self.rollback(len(found))
        return found

    def ahead(self, most: int) -> list[int]:
        """As `forced`; most positions are passed over at a glance."""
        try:
            return self.forced(most) if self.forced_text() else []
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            return []

    def forced_text(self) -> bytes:
        """Text that must come next, whatever its tokens are: a source of drafts, not of tokens. b"" = none known."""
        return b"" if self._stops else self._position.forced_text()


def only_token(mask_np: MaskArray) -> int:
    """The token whose bit alone is set; -1 where there is none or more than one."""
    (words,) = mask_np.nonzero()
    if len(words) != 1:
        return -1
    word = int(mask_np[words[0]]) & 0xFFFFFFFF
    return int(words[0]) * 32 + word.bit_length() - 1 if word & (word - 1) == 0 else -1
