"""What users may ask of structured output for a whole engine: the keys of `structured_outputs_config`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.core.grammar import GrammarDefaults
from cadence.core.structured_outputs import backend_named

OPTION = "structured_outputs_config"
_KEYS = ("backend", "disable_any_whitespace")
_NO_EFFECT = {  # keys of vLLM's
    "disable_additional_properties": "objects always have only the properties that their schema names",
    "disable_fallback": "a backend that is named is the one that is used",
    "reasoning_parser": "the server's option reasoning_parser says it",
    "enable_in_reasoning": "reasoning is free",
}


def read_structured(given: Mapping[str, Any]) -> GrammarDefaults:
    """ConfigError names the key."""
    for key in given:
        if key not in _KEYS and key not in _NO_EFFECT:
            near = difflib.get_close_matches(key, [*_KEYS, *_NO_EFFECT], n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(_KEYS)}"
            raise ConfigError(f"{OPTION} has no key {key!r}{hint}", OPTION)
    compact = given.get("disable_any_whitespace", False)
    if not isinstance(compact, bool):
        raise ConfigError(f"{OPTION}.disable_any_whitespace must be true or false", OPTION)
    try:
        backend = backend_named(given.get("backend", "auto"), f"{OPTION}.backend")
    except InvalidRequestError as error:
        raise ConfigError(str(error), OPTION) from None
    return GrammarDefaults(backend, any_whitespace=not compact)


def structured_notices(given: Mapping[str, Any]) -> list[str]:
    """What keys have no effect here, and why."""
    return [f"{OPTION}.{key} has no effect: {_NO_EFFECT[key]}" for key in given if key in _NO_EFFECT]
