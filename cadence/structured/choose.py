"""Which backend compiles a spec first: a function of the spec alone. What is too slow for it goes to the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cadence.core.grammar import GrammarBackend, GrammarKind, GrammarSpec
from cadence.structured.schema import MAX_REPETITIONS, repetitions, suits_xgrammar
from cadence.structured.structural_tag import schema_parts, structural_tag_as_lark

LIMITS_OF_STRINGS = ("minLength", "maxLength", "pattern", "format")
MAX_CHOICE_BYTES = 4096  # of all choices together: beyond, xgrammar takes seconds
# Of a schema, or of a structural tag. What xgrammar takes grows with the square: of 2 KiB half a second of CPU time, of
# 4 KiB two and 400 MiB, of 12 KiB ten and 1.5 GiB. The other takes 20 ms, and as long for most masks.
MAX_SCHEMA_BYTES = 2048


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
            return len(spec.text) <= MAX_SCHEMA_BYTES and suits_xgrammar(json.loads(spec.text))
        case GrammarKind.STRUCTURAL_TAG:
            return _tag_suits_xgrammar(spec.text)
        case _:
            return True


def _part_suits_xgrammar(part: Mapping[str, Any]) -> bool:
    """What strings must not have within, it does not look for in strings of a pattern, and forgets their lengths."""
    schema = part.get("json_schema")
    if isinstance(schema, bool):
        return True
    limited = bool(part.get("excludes")) and any(f'"{name}"' in json.dumps(schema) for name in LIMITS_OF_STRINGS)
    return not limited and suits_xgrammar(schema)


def _tag_suits_xgrammar(text: str) -> bool:
    """A large one, or one with a schema that it would not keep, is llguidance's, if that can do all the rest."""
    if len(text) <= MAX_SCHEMA_BYTES and all(map(_part_suits_xgrammar, schema_parts(text))):
        return True
    try:
        structural_tag_as_lark(text, {}, str)
    except ValueError:
        return True
    return False
