"""One spec, compiled by the backend that suits it and tried out."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cadence.core.errors import ConfigError
from cadence.core.grammar import GrammarBackend, GrammarKind, GrammarSpec
from cadence.core.shown import cut
from cadence.structured.choose import choose_backend
from cadence.structured.grammar import CompiledGrammar, Position, mask_words
from cadence.structured.llguidance_backend import Encode, LlguidanceGrammar, LlguidanceTables, compile_with_llguidance
from cadence.structured.packages import import_llguidance, import_xgrammar
from cadence.structured.vocabulary import Vocabulary
from cadence.structured.xgrammar_backend import XgrammarGrammar, XgrammarTables, compile_with_xgrammar

TRIAL_TOKENS = 48
TRIALS = 3


class RefusedGrammarError(Exception):
    """The sentence goes behind the name of the field: "is no valid regex: ..."."""


class Backends:
    """The packages and their tables of one vocabulary, each made when first needed."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode, stand_ins: tuple[str, ...] = ("transformers",)) -> None:
        self.vocabulary = vocabulary
        self._encode = encode
        self._stand_ins = stand_ins

    @cached_property
    def xgrammar(self) -> XgrammarTables:
        return XgrammarTables(self.vocabulary, import_xgrammar(self._stand_ins))

    @cached_property
    def llguidance(self) -> LlguidanceTables:
        return LlguidanceTables(self.vocabulary, self._encode, import_llguidance())

    def prepare(self) -> None:
        """Makes what packages there are ready. What is missing is the matter of the first grammar that needs it."""
        with contextlib.suppress(ConfigError):
            self.xgrammar.info(GrammarKind.JSON_OBJECT)
        with contextlib.suppress(ConfigError):
            _ = self.llguidance

    def compile(self, spec: GrammarSpec) -> tuple[GrammarBackend, str]:
        """-> who compiled it, and what `read` reads. Raises RefusedGrammarError."""
        try:
            backend = choose_backend(spec)
            if backend is GrammarBackend.XGRAMMAR:
                return backend, compile_with_xgrammar(spec, self.xgrammar)
            return backend, compile_with_llguidance(spec, self.llguidance)
        except ConfigError as error:  # a package is missing
            raise RefusedGrammarError(f"cannot be served: {error}") from None
        except MemoryError:
            raise
        except Exception as error:
            if "bad_alloc" in str(error):
                raise MemoryError from None
            raise RefusedGrammarError(f"is no {_NAMES[spec.kind]} that can be followed: {_reason(error)}") from None

    def read(self, spec: GrammarSpec, backend: str, data: str) -> CompiledGrammar:
        if backend == GrammarBackend.XGRAMMAR:
            return XgrammarGrammar.read(spec, data, self.xgrammar)
        return LlguidanceGrammar.read(spec, data, self.llguidance)


def try_out(compiled: CompiledGrammar, vocabulary: Vocabulary, step_seconds: float) -> None:
    """Follows the grammar for a while. Raises RefusedGrammarError where that takes too long or leads nowhere."""
    trial = _Trial(np.empty(mask_words(vocabulary.size), np.int32), frozenset(vocabulary.stop_ids), step_seconds)
    for seed in range(TRIALS):
        trial.walk(compiled.position(), np.random.default_rng(seed))


@dataclass(slots=True)
class _Trial:
    mask_np: np.ndarray  # [words]
    stop_ids: frozenset[int]
    step_seconds: float

    def walk(self, position: Position, random: np.random.Generator) -> None:
        for _ in range(TRIAL_TOKENS):
            start = time.process_time()
            position.fill(self.mask_np)
            allowed = np.unpackbits(self.mask_np.view(np.uint8), bitorder="little").nonzero()[0]
            text = [token for token in random.permutation(allowed)[:2].tolist() if token not in self.stop_ids]
            if position.error:
                raise RefusedGrammarError(f"takes more work than it may: {position.error}")
            if not len(allowed):
                raise RefusedGrammarError("leads to where no token of this model can follow")
            if not text:
                return
            position.accept(text[0])
            if time.process_time() - start > self.step_seconds:
                raise RefusedGrammarError(f"takes more than {self.step_seconds:.3g} s for a single token")


_NAMES = {
    GrammarKind.JSON_OBJECT: "JSON schema",
    GrammarKind.JSON_SCHEMA: "JSON schema",
    GrammarKind.REGEX: "regular expression",
    GrammarKind.CHOICE: "list of choices",
    GrammarKind.EBNF: "EBNF grammar",
    GrammarKind.LARK: "Lark grammar",
    GrammarKind.STRUCTURAL_TAG: "structural tag",
}


def _reason(error: Exception) -> str:
    """What the package says, without the place in its sources that it begins with."""
    text = str(error).strip()
    head, found, rest = text.partition("] ")
    text = rest if found and head.startswith("[") else text
    head, found, rest = text.partition(": ")
    text = rest if found and "/cpp/" in head else text
    return cut(text).rstrip(".")
