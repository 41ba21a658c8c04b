"""One spec, compiled by the backend that suits it and tried out."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from dataclasses import replace
from functools import cached_property

import numpy as np

from cadence.core.errors import ConfigError
from cadence.core.grammar import GrammarBackend, GrammarKind, GrammarSpec
from cadence.core.shown import cut
from cadence.structured.canonical import Encode
from cadence.structured.choose import choose_backend
from cadence.structured.grammar import CompiledGrammar, Grammar, MaskArray, Matcher, mask_words
from cadence.structured.llguidance_backend import (
    NO_TOKEN,
    LlguidanceGrammar,
    LlguidanceTables,
    compile_with_llguidance,
)
from cadence.structured.packages import import_llguidance, import_xgrammar
from cadence.structured.structural_tag import schemas_in
from cadence.structured.vocabulary import Vocabulary
from cadence.structured.xgrammar_backend import XgrammarGrammar, XgrammarTables, compile_with_xgrammar

TRIAL_TOKENS = 48
TRIALS = 3


class RefusedGrammarError(Exception):
    """The sentence goes after the name of the field: "is no valid regex: ..."."""


class CostlyGrammarError(RefusedGrammarError):
    """It can be followed, but not fast enough or in too much memory: another backend may do better."""


class Backends:
    """The packages and their tables of one vocabulary, each made when first needed."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode, stand_ins: tuple[str, ...] = ("transformers",)) -> None:
        self.vocabulary = vocabulary
        self._encode = encode
        self._stand_ins = stand_ins

    @cached_property
    def xgrammar(self) -> XgrammarTables:
        return XgrammarTables(self.vocabulary, self._encode, import_xgrammar(self._stand_ins))

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
            why = self._bad_schema(spec) or _reason(error)
            raise RefusedGrammarError(f"is no {_NAMES[spec.kind]} that can be followed: {why}") from None

    def _bad_schema(self, spec: GrammarSpec) -> str:
        """Which schema of a structural tag is refused alone, by its title, and why; "" = none, or it has no title."""
        schemas = schemas_in(spec.text) if spec.kind is GrammarKind.STRUCTURAL_TAG else ()
        for schema in schemas:
            alone = replace(spec, kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))
            try:
                self.compile(alone)
            except RefusedGrammarError as error:
                title = schema.get("title") if isinstance(schema, dict) else None
                return f"the JSON schema {cut(title)!r} {error}" if isinstance(title, str) else ""
        return ""

    def read(self, spec: GrammarSpec, backend: str, data: str) -> Grammar:
        """From what `compile` gave, here or in a process with the same vocabulary."""
        compiled: CompiledGrammar
        if backend == GrammarBackend.XGRAMMAR:
            compiled = XgrammarGrammar.read(spec, data, self.xgrammar)
        else:
            compiled = LlguidanceGrammar.read(spec, data, self.llguidance)
        return Grammar(spec.digest, backend, compiled, self.vocabulary.size, frozenset(self.vocabulary.stop_ids))


def try_out(grammar: Grammar, step_seconds: float, median_seconds: float = math.inf) -> None:
    """Follows the grammar for a while. Raises CostlyGrammarError where a token takes longer than `step_seconds` of CPU
    time, or half of the later ones longer than `median_seconds`; RefusedGrammarError where it leads nowhere."""
    mask_np = np.empty(mask_words(grammar.vocab_size), np.int32)
    for seed in range(TRIALS):
        matcher, random, seconds = grammar.matcher(), np.random.default_rng(seed), list[float]()
        while len(seconds) < TRIAL_TOKENS and not matcher.finished:
            start = time.process_time()
            _step(matcher, mask_np, random)
            seconds.append(time.process_time() - start)
            if seconds[-1] > step_seconds:
                raise CostlyGrammarError(f"takes more than {step_seconds:.3g} s for a single token")
        if statistics.median(seconds[len(seconds) // 2 :] or [0.0]) > median_seconds:
            raise CostlyGrammarError(f"takes more than {median_seconds:.3g} s for most tokens")


def _step(matcher: Matcher, mask_np: MaskArray, random: np.random.Generator) -> None:
    matcher.fill(mask_np)
    allowed = np.unpackbits(mask_np.view(np.uint8), bitorder="little").nonzero()[0]
    if matcher.error and NO_TOKEN not in matcher.error:
        raise CostlyGrammarError(f"takes more work than it may: {matcher.error}")
    if not len(allowed):
        raise RefusedGrammarError("leads to where no token of this model can follow")
    matcher.accept(int(random.choice(allowed)))


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
    return cut(text.replace("<non-verbose/>", "")).strip().rstrip(".")
