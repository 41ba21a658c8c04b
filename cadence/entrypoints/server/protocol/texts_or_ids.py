"""Prompts as OpenAI's endpoints take them: a text, token ids, or a list of either."""

from __future__ import annotations

from typing import Any

from cadence.core.errors import InvalidRequestError

# The JSON schema of a field that holds them.
TEXTS_OR_IDS: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}, "minItems": 1},
    ]
}


def texts_or_ids(given: object, field: str, most: int) -> list[str | list[int]]:
    """One prompt or many: text, token ids, a list of texts, a list of lists of ids. `field` holds them."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given and type(given[0]) is int:
        if not is_ids(given):
            raise InvalidRequestError(f"{field} begins with a token id, but not all of it are token ids", field)
        return [given]
    if not isinstance(given, list) or not given:
        raise InvalidRequestError(f"{field} must be a string, token ids, or a list of those that is not empty", field)
    if len(given) > most:
        raise InvalidRequestError(f"{field} has {len(given)} entries; at most {most} are allowed", field)
    texts = all(isinstance(one, str) for one in given)
    for number, one in enumerate(given):
        if not texts and not is_ids(one):
            where = f"{field}[{number}]"
            raise InvalidRequestError(f"{where} must be a list of token ids; a list holds one kind only", where)
    return given


def is_ids(value: object) -> bool:
    return isinstance(value, list) and set(map(type, value)) == {int}
