"""adapter_config.json as PEFT writes it: what was trained, and with which ranks and scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.files.json_file import MOST_CONFIG_BYTES, read_object
from cadence.core.errors import AdapterError
from cadence.core.shown import shown
from cadence.lora.patterns import MOST_KEYS, ModulePatterns

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


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    path: Path  # of the file
    rank: int
    alpha: float
    rank_pattern: ModulePatterns
    alpha_pattern: ModulePatterns
    rslora: bool
    dora: bool
    bias: str  # none | all | lora_only

    def rank_of(self, module: str) -> int:
        found = self.rank_pattern.number_for(module)
        return self.rank if found is None else int(found)

    def scale_of(self, module: str) -> float:
        """What B A is multiplied by in a module, named as in the model's checkpoint."""
        rank, found = self.rank_of(module), self.alpha_pattern.number_for(module)
        alpha = self.alpha if found is None else found
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
        rank_pattern=_patterns(path, "rank_pattern", raw, _rank),
        alpha_pattern=_patterns(path, "alpha_pattern", raw, _number),
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


def _patterns(
    path: Path, field: str, raw: dict[str, Any], number: Callable[[Path, str, object], float]
) -> ModulePatterns:
    found = raw.get(field) or {}
    if not isinstance(found, dict) or len(found) > MOST_KEYS:
        raise AdapterError(f"{path}: {field!r} must be an object of at most {MOST_KEYS} keys")
    return ModulePatterns(path, field, {key: number(path, field, value) for key, value in found.items()})
