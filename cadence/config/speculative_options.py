"""What users may ask of speculative decoding: the keys of `speculative_config`, under vLLM's names.

Checked as soon as they are given, before a file is read. Keys of vLLM that mean nothing here are named with the reason,
or refused with it; an unknown key is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cadence.config.command_line import values
from cadence.config.peers.peer_draft_keys import KEYS as PEER_KEYS
from cadence.core.errors import ConfigError, ModelNotFoundError

OPTION = "speculative_config"
METHODS = ("none", "ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp", "medusa")
WITH_MODEL = frozenset({"draft_model", "eagle", "eagle3", "medusa"})  # methods that read weights of a second model
MAYBE_BUILT_IN = frozenset({"eagle3"})  # of these, those that need not name it: see `builtin_heads`
MOST_TOKENS = 31  # drafts of a row in a forward
MOST_LOOKUP = 32  # tokens of an n-gram
LOOKUP_MIN, LOOKUP_MAX = 2, 5  # tokens of an n-gram, unless told
EXACT, PROBABILISTIC = "exact", "probabilistic"
_VERIFIERS = {  # vLLM's names among them; its standard one is decided by draft_sample_method
    "exact": EXACT, "strict": EXACT, "standard": EXACT, "probabilistic": PROBABILISTIC, "block": PROBABILISTIC,
}  # fmt: skip
_MEANT_BY = {"[ngram]": "ngram", "ngram_gpu": "ngram"}
_NOT_HERE = ("mlp_speculator", "custom_class", "dflash", "dspark", "extract_hidden_states")  # of vLLM's methods
_RANGES: dict[str, tuple[float, float]] = {
    "num_speculative_tokens": (1, MOST_TOKENS),
    "prompt_lookup_min": (1, MOST_LOOKUP),
    "prompt_lookup_max": (1, MOST_LOOKUP),
    "max_model_len": (1, 2**31 - 1),
    "suffix_decoding_max_tree_depth": (1, 1024),
    "suffix_decoding_max_cached_requests": (0, 10**9),
    "suffix_decoding_max_spec_factor": (0, 1e6),
    "suffix_decoding_min_token_prob": (0, 1),
}


@dataclass(frozen=True, slots=True)
class SpeculativeOptions:
    """None = not given: decided when the files are known."""

    method: str | None = None
    num_speculative_tokens: int | None = None
    model: str | None = None  # as the target's: a folder, a .gguf file, or a hub id
    revision: str | None = None
    max_model_len: int | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    rejection_sample_method: str | None = None
    draft_sample_method: str | None = None
    adaptive: bool = True
    suffix_decoding_max_tree_depth: int = 24
    suffix_decoding_max_cached_requests: int = 10_000
    suffix_decoding_max_spec_factor: float = 1.0
    suffix_decoding_min_token_prob: float = 0.1

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> SpeculativeOptions:
        """What is left once notices are given, with the method named where no file is needed to tell it. ConfigError
        names the key."""
        known = {key: _coerced(key, value) for key, value in given.items() if key in _hints()}
        for key in given.keys() - known.keys():
            _notice(key, given[key])
        method = _method(known.pop("method", None), known.get("model"), bool(given))
        if method in ("ngram", "suffix", "none"):
            known.pop("model", None)
        options = cls(method=method, **known)
        options._check()
        return options

    @property
    def lookup(self) -> tuple[int, int]:
        """Fewest and most tokens of an n-gram; one that is given alone counts as both."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is None and high is None:
            return LOOKUP_MIN, LOOKUP_MAX
        return low or high or LOOKUP_MIN, high or low or LOOKUP_MAX

    @property
    def verifier(self) -> str:
        """exact | probabilistic. Drafts that are to be drawn by probability ask for the rejection sampler, as in vLLM;
        of others it accepts exactly as many."""
        asked = self.rejection_sample_method or "standard"
        by_draft = asked == "standard" and self.draft_sample_method == PROBABILISTIC
        return PROBABILISTIC if by_draft else _VERIFIERS[asked]

    def _check(self) -> None:
        for key, (low, high) in _RANGES.items():
            value = getattr(self, key)
            if value is not None and not low <= value <= high:
                raise wrong(key, value, f"between {low} and {high}")
        low, high = self.lookup
        if low > high:
            raise wrong("prompt_lookup_min", low, f"at most prompt_lookup_max={high}")
        _one_of("rejection_sample_method", self.rejection_sample_method, tuple(_VERIFIERS))
        _one_of("draft_sample_method", self.draft_sample_method, ("greedy", PROBABILISTIC))
        if self.method in WITH_MODEL - MAYBE_BUILT_IN and not self.model:
            raise model_missing(self.method)


def without_hints(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The keys that mean something here, and sentences about the others."""
    said = [text for key in given if key not in _hints() and (text := _notice(key, given[key]))]
    return {key: value for key, value in given.items() if key in _hints()}, said


def model_missing(method: str, more: str = "") -> ConfigError:
    return ConfigError(f"{OPTION}.model is missing: method={method} reads a second model{more}", f"{OPTION}.model")


def draft_not_found(error: ModelNotFoundError) -> ModelNotFoundError:
    return ModelNotFoundError(f"{OPTION}.model: {error}")


def wrong(key: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"{OPTION}.{key}={value} is not {expected}", f"{OPTION}.{key}")


def _notice(key: str, value: object) -> str:
    if key in PEER_KEYS:
        return PEER_KEYS[key].notice(value)
    near = difflib.get_close_matches(key, [*_hints(), *PEER_KEYS], n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(_hints())}"
    raise ConfigError(f"unknown key {OPTION}.{key}{hint}", f"{OPTION}.{key}")


def _method(asked: str | None, model: str | None, given: bool) -> str | None:
    """None = the files of the model will tell."""
    if not given:
        return "none"
    if asked is None and model is None:
        raise ConfigError(f"{OPTION} names neither a method nor a model", f"{OPTION}.method")
    name = asked if asked is not None else model if model in ("ngram", "[ngram]", "ngram_gpu", "suffix") else None
    name = _MEANT_BY.get(name, name) if name is not None else None
    if name is not None and name.endswith("_mtp"):
        return "mtp"
    if name in _NOT_HERE:
        raise ConfigError(
            f"{OPTION}.method={name} is not in this version; the methods are {', '.join(METHODS)}", f"{OPTION}.method"
        )
    _one_of("method", name, METHODS)
    return name


def _one_of(key: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise wrong(key, repr(value), f"one of {', '.join(choices)}{hint}")


def _coerced(key: str, value: object) -> Any:
    if value is None:
        return _defaults()[key]
    return values.coerce(f"{OPTION}.{key}", _hints()[key], value)


@functools.cache
def _hints() -> dict[str, Any]:
    hints = typing.get_type_hints(SpeculativeOptions)
    return {field.name: hints[field.name] for field in dataclasses.fields(SpeculativeOptions)}


@functools.cache
def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(SpeculativeOptions)}
