"""JSON into plain values. What is no JSON is said with the field, where one is to blame."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.errors import ApiError, field_path
from cadence.entrypoints.server.http.json_limits import JsonLimits, check_json

MAX_ARGUMENTS = 2**20  # characters of a tool call's arguments, which are JSON in a string
_ARGUMENT_LIMITS = JsonLimits(max_depth=64, max_values=100_000)
_SEARCHED_BYTES = 2**18  # of JSON, for the field of a bad value; beyond that the parser's own words name the byte
_MAX_DIGITS = 4000  # of an integer; Python reads 4300


def decode_json(raw: bytes) -> Any:
    """NaN, Infinity and numbers that no float can hold are no JSON here."""
    try:
        return msgspec.json.decode(raw)
    except UnicodeDecodeError:
        raise _invalid("it is not in UTF-8") from None
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    except msgspec.DecodeError as error:
        where = _bad_value(raw) if len(raw) <= _SEARCHED_BYTES else ""
        why = f"{where} must be a finite number, or text without half a character" if where else str(error)
        raise _invalid(why, where or None) from None


def decode_arguments(arguments: str, where: str) -> Any:
    check_arguments(arguments, where)
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequestError(f"{where} is not valid JSON", where) from None


def check_arguments(arguments: str, where: str) -> None:
    """That they are cheap to parse."""
    if len(arguments) > MAX_ARGUMENTS:
        raise InvalidRequestError(f"{where} should have at most {MAX_ARGUMENTS} characters", where)
    try:
        check_json(arguments.encode(), _ARGUMENT_LIMITS)
    except ApiError:
        raise InvalidRequestError(f"{where} holds too many values, or is nested too deeply", where) from None


def _bad_value(raw: bytes) -> str:
    """The field that holds the first value a parser cannot take in what is otherwise JSON; "" where there is none."""
    try:
        content = json.loads(raw, parse_int=_integer)
    except (ValueError, RecursionError):
        return ""
    found = _find_bad(content, ())
    return field_path(("body", *found)) if found else ""


def _integer(digits: str) -> float:
    """All that matters here is whether it is too long."""
    return 0.0 if len(digits) <= _MAX_DIGITS else math.inf


def _find_bad(value: Any, place: tuple[int | str, ...]) -> tuple[int | str, ...] | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else place
    if isinstance(value, str):
        return None if _is_whole(value) else place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        if found := _find_bad(item, (*place, key[:80] if isinstance(key, str) else key)):
            return found
    return None


def _is_whole(text: str) -> bool:
    """Whether it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _invalid(why: str, field: str | None = None) -> ApiError:
    return ApiError(400, f"the body is not valid JSON: {why}", param=field, code="invalid_json")
