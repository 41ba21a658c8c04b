"""adapter_config.json as PEFT writes it: what was trained, and with which ranks and scales."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.json_file import MOST_CONFIG_BYTES, read_object
from cadence.core.errors import AdapterError
from cadence.core.shown import shown

CONFIG_FILE = "adapter_config.json"

_BIASES = ("none", "all", "lora_only")
# What changes the result in a way that is not computed here; null, false and empty are as good as absent.
_REFUSED = (
    "alora_invocation_tokens",
    "arrow_config",
    "ensure_weight_tying",
    "kasa_config",
    "layer_replication",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
)
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")  # ways to begin that change the model itself
_MOST_RANK = 1 << 20  # above any width of a model
_MOST_PATTERNS = 4096
_MOST_PATTERN = 256  # characters
_MOST_REPEATS = 3  # in one pattern: matching a name takes no longer than its length to that power
_PLAIN = re.compile(r"[\w.]+")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    path: Path  # of the file
    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    rslora: bool
    dora: bool
    bias: str  # none | all | lora_only

    def rank_of(self, module: str) -> int:
        return self.rank_pattern.get(_matching(self.rank_pattern, module), self.rank)

    def scale_of(self, module: str) -> float:
        """What B A is multiplied by in a module, named as in the model's checkpoint."""
        rank = self.rank_of(module)
        alpha = self.alpha_pattern.get(_matching(self.alpha_pattern, module), self.alpha)
        return alpha / rank**0.5 if self.rslora else alpha / rank


def read_config(directory: Path) -> AdapterConfig:
    path = directory / CONFIG_FILE
    raw = read_object(path, MOST_CONFIG_BYTES, AdapterError)
    _refuse_other_kinds(path, raw)
    bias = raw.get("bias", "none")
    if bias not in _BIASES:
        raise AdapterError(f"{path}: 'bias' must be one of {', '.join(_BIASES)}, not {shown(bias)}")
    if raw.get("lora_bias") and raw.get("use_dora"):
        raise AdapterError(f"{path}: 'lora_bias' and 'use_dora' do not go together")
    return AdapterConfig(
        path=path,
        rank=_rank(path, "r", raw.get("r", 8)),
        alpha=_number(path, "lora_alpha", raw.get("lora_alpha", 8)),
        rank_pattern={key: _rank(path, "rank_pattern", value) for key, value in _pattern(path, "rank_pattern", raw)},
        alpha_pattern={
            key: _number(path, "alpha_pattern", value) for key, value in _pattern(path, "alpha_pattern", raw)
        },
        rslora=bool(raw.get("use_rslora")),
        dora=bool(raw.get("use_dora")),
        bias=bias,
    )


def _refuse_other_kinds(path: Path, raw: dict[str, Any]) -> None:
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{path}: 'peft_type' is {shown(kind)}; only LORA adapters are supported")
    for field in _REFUSED:
        if raw.get(field):
            raise AdapterError(f"{path}: {field!r} is {shown(raw[field])}, which is not supported")
    begin = raw.get("init_lora_weights")
    if isinstance(begin, str) and begin.lower().startswith(_CHANGED_BASE):
        raise AdapterError(
            f"{path}: 'init_lora_weights' is {shown(begin)}, which changes the model's own weights; save the adapter "
            "with path_initial_model_for_weight_conversion to turn it into a plain one"
        )


def _rank(path: Path, field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_RANK:
        raise AdapterError(f"{path}: {field!r} must be ranks of 1 to {_MOST_RANK}, found {shown(value)}")
    return value


def _number(path: Path, field: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e30:
        raise AdapterError(f"{path}: {field!r} must be finite numbers, found {shown(value)}")
    return float(value)


def _pattern(path: Path, field: str, raw: dict[str, Any]) -> list[tuple[str, Any]]:
    """Keys are names of modules, or regular expressions that match the end of one."""
    found = raw.get(field) or {}
    if not isinstance(found, dict) or len(found) > _MOST_PATTERNS:
        raise AdapterError(f"{path}: {field!r} must be an object of at most {_MOST_PATTERNS} patterns")
    for key in found:
        _check_pattern(path, field, key)
    return list(found.items())


def _check_pattern(path: Path, field: str, key: str) -> None:
    """Whoever wrote the file may want the matching to take for ever: nothing that repeats is repeated."""
    repeats = len(re.findall(r"[*+{]", key))
    if len(key) > _MOST_PATTERN or repeats > _MOST_REPEATS or re.search(r"\)[*+{?]", key):
        limit = f"{_MOST_PATTERN} characters, {_MOST_REPEATS} repetitions and no repeated group"
        raise AdapterError(f"{path}: {field!r} has {shown(key)}; a pattern has at most {limit}")
    try:
        re.compile(_whole(key))
    except (re.error, RecursionError, OverflowError):
        raise AdapterError(f"{path}: {field!r} has {shown(key)}, which is no regular expression") from None


def _whole(key: str) -> str:
    return rf"(.*\.)?({key})$"


def _matching(patterns: Mapping[str, object], module: str) -> str:
    """The first pattern that the module's name ends with; "" = none."""
    for key in patterns:
        if _PLAIN.fullmatch(key) and "." not in key:
            if module.rpartition(".")[2] == key:
                return key
        elif re.match(_whole(key), module):
            return key
    return ""
