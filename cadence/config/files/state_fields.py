"""The fields of models whose layers keep a state in place of keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cadence.config.files.field_types import Boolean, FieldType, Integer, Limit, ListOf, Nullable, Number, String
from cadence.core.model.architectures import MOST_LAYERS


@dataclass(frozen=True, slots=True)
class OrAuto:
    other: FieldType

    @property
    def expected(self) -> str:
        return f"{self.other.expected}, or 'auto'"

    def read(self, value: Any) -> Any:
        return value if value == "auto" else self.other.read(value)


_SIZE, _HEADS, _TAPS = Integer(1, 2**24), Integer(1, 2**16), Integer(2, 2**8)
_LAYERS, _FACTOR = Integer(1, MOST_LAYERS), Number(0, 1e6)

STATE_FIELDS: Mapping[str, FieldType] = {
    "state_size": _HEADS,
    "num_heads": _HEADS,
    "n_groups": _HEADS,
    "conv_kernel": _TAPS,
    "expand": Number(0, 2**10),
    "time_step_rank": OrAuto(_HEADS),
    "mixer_rms_eps": Number(0, 1),
    "use_bias": Boolean(),
    "use_conv_bias": Boolean(),
    "time_step_limit": Nullable(ListOf(Limit())),
    "expert_layer_period": _LAYERS,
    "expert_layer_offset": Integer(0, MOST_LAYERS),
    "attn_layer_period": _LAYERS,
    "attn_layer_offset": Integer(0, MOST_LAYERS),
    "attn_layer_indices": Nullable(ListOf(Integer(0, MOST_LAYERS))),
    "layers_block_type": Nullable(ListOf(String())),
    "mamba_n_heads": _HEADS,
    "mamba_n_groups": _HEADS,
    "mamba_d_head": Nullable(OrAuto(_HEADS)),
    "mamba_d_state": _HEADS,
    "mamba_d_conv": _TAPS,
    "mamba_expand": Number(0, 2**10),
    "mamba_dt_rank": OrAuto(_HEADS),
    "mamba_conv_bias": Boolean(),
    "mamba_proj_bias": Boolean(),
    "conv_L_cache": _TAPS,
    "conv_bias": Boolean(),
    "block_ff_dim": _SIZE,
    "block_multiple_of": _SIZE,
    "block_ffn_dim_multiplier": Nullable(_FACTOR),
    "block_auto_adjust_ff_dim": Boolean(),
    "full_attn_idxs": Nullable(ListOf(Integer(0, MOST_LAYERS))),
    "tie_embedding": Boolean(),
    "shared_intermediate_size": _SIZE,
    "full_attention_interval": _LAYERS,
    "linear_conv_kernel_dim": _TAPS,
    "linear_key_head_dim": _HEADS,
    "linear_value_head_dim": _HEADS,
    "linear_num_key_heads": _HEADS,
    "linear_num_value_heads": _HEADS,
    "shared_expert_intermediate_size": _SIZE,
    "mamba_norm_groups": _HEADS,
    "mamba_d_ssm": Nullable(_SIZE),
    "mamba_norm_before_gate": Boolean(),
    "mamba_rms_norm": Boolean(),
    "projectors_bias": Boolean(),
    **{
        f"{name}_multiplier": Nullable(_FACTOR)
        for name in ("lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")
    },
    "ssm_multipliers": Nullable(ListOf(_FACTOR)),
    "mlp_multipliers": Nullable(ListOf(_FACTOR)),
}
