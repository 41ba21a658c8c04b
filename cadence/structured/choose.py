"""Which backend compiles a spec: a function of the spec alone, so that a restarted engine chooses as the first did."""

from __future__ import annotations

import json

from cadence.core.grammar import GrammarBackend, GrammarKind, GrammarSpec
from cadence.structured.schema import MAX_REPETITIONS, repetitions, suits_xgrammar

MAX_CHOICE_BYTES = 4096  # of all choices together: beyond, xgrammar takes seconds


def choose_backend(spec: GrammarSpec) -> GrammarBackend:
    if spec.backend is not GrammarBackend.AUTO:
        return spec.backend
    return GrammarBackend.XGRAMMAR if _suits_xgrammar(spec) else GrammarBackend.LLGUIDANCE


def _suits_xgrammar(spec: GrammarSpec) -> bool:
    if spec.whitespace_pattern:
        return False
    match spec.kind:
        case GrammarKind.LARK:
            return False
        case GrammarKind.REGEX | GrammarKind.EBNF:
            return repetitions(spec.text) <= MAX_REPETITIONS
        case GrammarKind.CHOICE:
            return len(spec.text) <= MAX_CHOICE_BYTES
        case GrammarKind.JSON_SCHEMA:
            return suits_xgrammar(json.loads(spec.text))
        case _:
            return True
