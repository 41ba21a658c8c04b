"""Which backend compiles a spec: a function of the spec alone, so that a restarted engine chooses as the first did."""

from __future__ import annotations

import json

from cadence.core.grammar import GrammarBackend, GrammarKind, GrammarSpec
from cadence.structured.schema import MAX_REPETITIONS, repetitions, suits_xgrammar
from cadence.structured.structural_tag import schemas_in, structural_tag_as_lark

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
        case GrammarKind.STRUCTURAL_TAG:
            return _tag_suits_xgrammar(spec.text)
        case _:
            return True


def _tag_suits_xgrammar(text: str) -> bool:
    """A tag with a schema that it would not keep is llguidance's, if that can do all the rest."""
    if all(isinstance(schema, bool) or suits_xgrammar(schema) for schema in schemas_in(text)):
        return True
    try:
        structural_tag_as_lark(text, {}, str)
    except ValueError:
        return True
    return False
