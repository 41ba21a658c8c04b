"""A head's config.json, in the layouts there are.

- EAGLE's and EAGLE-3's own: a configuration of the layer's family, with a few keys more. Files for SGLang and vLLM have
  names of their own for the architecture.
- speculators: the family's configuration in `transformer_layer_config`, the head's keys beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.files.field_types import Boolean, FieldType, Integer, ListOf, Nullable
from cadence.config.files.fields import wrong
from cadence.config.files.json_file import MOST_CONFIG_BYTES, read_object
from cadence.config.hf import HFConfig, make_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.errors import ModelFileError
from cadence.core.model.architectures import ARCHITECTURES, MOST_LAYERS, unsupported

_SIZE, _LAYER = Integer(1, 2**24), Integer(0, MOST_LAYERS)
_FIELDS: Mapping[str, FieldType] = {
    "draft_vocab_size": Nullable(_SIZE),
    "target_hidden_size": Nullable(_SIZE),
    "norm_before_residual": Nullable(Boolean()),
    "eagle_aux_hidden_state_layer_ids": Nullable(ListOf(_LAYER)),
}
_FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}  # by model_type
_LLAMA_DEFAULTS = {  # of transformers: speculators leaves out what equals them
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True, slots=True)
class HeadConfig:
    layer: HFConfig  # its decoder layers, as a model of one of our families has them
    draft_vocab_size: int  # 0 = not said
    target_hidden_size: int  # 0 = the layer's
    norm_before_residual: bool
    aux_layers: tuple[int, ...]  # of the target, as `AuxHiddenStates` counts them; () = not said


def read_head_config(files: ModelFiles) -> HeadConfig:
    path = files.directory / "config.json"
    raw = read_object(path, MOST_CONFIG_BYTES, lambda message: ModelFileError(message, "speculative_config"))
    speculators = isinstance(raw.get("transformer_layer_config"), dict)
    fields = {name: _read(raw, name, kind, path) for name, kind in _FIELDS.items()}
    before = fields["norm_before_residual"]
    return HeadConfig(
        layer=make_hf_config(files.name, path, _layer(raw, path, speculators), {}),
        draft_vocab_size=fields["draft_vocab_size"] or 0,
        target_hidden_size=fields["target_hidden_size"] or 0,
        norm_before_residual=speculators if before is None else before,
        aux_layers=tuple(fields["eagle_aux_hidden_state_layer_ids"] or _nested_aux(raw, path)),
    )


def _layer(raw: dict[str, Any], path: Path, speculators: bool) -> dict[str, Any]:
    """The configuration of a model made of such layers, which names a family of ours."""
    layer = {**_LLAMA_DEFAULTS, **raw["transformer_layer_config"]} if speculators else raw
    names = [name for name in layer.get("architectures") or () if isinstance(name, str)]
    plain = [name.removeprefix("Eagle3").removeprefix("Eagle") for name in names]
    plain = [name.removesuffix("Eagle3").removesuffix("Eagle") for name in plain]
    by_type = _FAMILIES.get(str(layer.get("model_type", "llama")), "")
    family = next((name for name in [*plain, by_type] if name in ARCHITECTURES), None)
    if family is None:
        named = names[0] if names else str(layer.get("model_type"))
        raise ModelFileError(f"{path}: {unsupported(named)}", "architectures")
    return {**layer, "architectures": [family]}


def _nested_aux(raw: Mapping[str, Any], path: Path) -> list[int]:
    """Files for SGLang count layers by their outputs: 1 is what layer 2 gets."""
    nested = raw.get("eagle_config")
    if not isinstance(nested, dict):
        return []
    name = "eagle_aux_hidden_state_layer_ids"
    return [layer + 1 for layer in _read(nested, name, _FIELDS[name], path) or ()]


def _read(raw: Mapping[str, Any], name: str, kind: FieldType, path: Path) -> Any:
    try:
        return kind.read(raw.get(name))
    except (ValueError, OverflowError):
        raise wrong(path, name, kind.expected, raw.get(name)) from None
