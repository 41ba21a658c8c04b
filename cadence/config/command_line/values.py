"""Turning what users write (Python values, flag texts, config files) into the type a field declares."""

from __future__ import annotations

import json
import operator
import os
import types
import typing
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from cadence.core.errors import ConfigError

_SUFFIXES = {
    **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{letter: 1024**power for power, letter in enumerate("KMGT", start=1)},
}


def human_int(text: str) -> int:
    """`4096`, `32k` (thousands), `32K` (1024s), `1.5k`, `1M`. Lower case is decimal, and a fraction
    of the result is dropped; upper case is binary, and the result must be whole."""
    body = text.strip().replace("_", "")
    suffix = body[-1:] if body[-1:] in _SUFFIXES else ""
    try:
        number = Fraction(body.removesuffix(suffix)) * _SUFFIXES.get(suffix, 1)
    except (ValueError, ZeroDivisionError):
        number = Fraction(1, 2)
        suffix = ""
    if "/" in body or (number.denominator != 1 and not suffix.islower()):
        raise ValueError(f"{text!r} is not a whole number such as 4096, 32k, 32K or 1M")
    return int(number)


def _int(value: object) -> int:
    if isinstance(value, str):
        return human_int(value)
    if isinstance(value, bool):
        raise ValueError("expected a whole number, got a truth value")
    try:
        return operator.index(value)  # type: ignore[arg-type]  # numpy integers qualify, floats do not
    except TypeError:
        raise ValueError(f"expected a whole number, got {value!r}") from None


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected a number, got {value!r}")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"expected a number, got {value!r}") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(f"expected a finite number, got {value!r}")
    return number


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise ValueError(f"expected true or false, got {value!r}")


def _str(value: object) -> str:
    if isinstance(value, (str, os.PathLike)):
        return str(os.fspath(value))
    raise ValueError(f"expected text, got {value!r}")


def _dict(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("expected an object with text keys, for example '{\"rope_theta\": 10000}'")
    return dict(value)


def _list(value: object) -> list[Any]:
    if isinstance(value, str):
        return value.split(",") if value else []
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    raise ValueError(f"expected a list, got {value!r}")


def _numbers(items: list[Any]) -> list[Any]:
    """A text may hold several, with commas between them."""
    return [number for item in items for number in (item.split(",") if isinstance(item, str) else [item])]


_CONVERTERS: dict[Any, Callable[[object], Any]] = {
    bool: _bool, int: _int, float: _float, str: _str, dict: _dict, list: _list,
}  # fmt: skip


def parts(hint: Any) -> list[Any]:
    """The types a hint allows, without None, in the order written."""
    found = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [part for part in found if part is not type(None)]


def coerce(name: str, hint: Any, value: object) -> Any:
    """`value` as the first type of `hint` that takes it; ConfigError naming the option otherwise."""
    if value == "None" and type(None) in typing.get_args(hint):
        value = None
    if value is None:
        if hint is Any or type(None) in typing.get_args(hint):
            return None
        raise ConfigError(f"{name} must not be None", name)
    problem = ""
    for part in parts(hint):
        convert = _CONVERTERS.get(typing.get_origin(part) or part)
        if convert is None:
            return value
        try:
            converted = convert(value)
        except ValueError as error:
            problem = problem or str(error)
            continue
        if not isinstance(converted, list):
            return converted
        (of_item,) = typing.get_args(part)
        return [coerce(name, of_item, item) for item in (_numbers(converted) if of_item is int else converted)]
    raise ConfigError(f"{name}: {problem}", name)
