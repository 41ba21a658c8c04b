"""The fields that single families of decoders have."""

from __future__ import annotations

from collections.abc import Mapping

from cadence.config.files.field_types import (
    MOST_ID,
    Boolean,
    EitherOf,
    FieldType,
    Integer,
    ListOf,
    Nullable,
    Number,
    String,
)
from cadence.core.model.architectures import MOST_LAYERS

_SIZE, _HEADS, _MULTIPLE = Integer(1, 2**24), Integer(1, 2**16), Number(1e-6, 1e6)

DECODER_FIELDS: Mapping[str, FieldType] = {
    **dict.fromkeys(("n_embed", "d_model"), _SIZE),
    "ffn_hidden_size": Nullable(_SIZE),
    "num_kv_heads": Nullable(_HEADS),
    "num_ln_in_parallel_attn": Nullable(Integer(1, 2)),
    "rotary_dim": Nullable(_SIZE),
    "rotary_pct": Nullable(Number(0, 1)),
    "norm_epsilon": Number(0, 1),
    "embedding_multiplier": Nullable(_MULTIPLE),
    "attention_multiplier": _MULTIPLE,
    "residual_multiplier": _MULTIPLE,
    "logits_scaling": _MULTIPLE,
    "attention_chunk_size": Nullable(Integer(1, MOST_ID)),
    "floor_scale": Integer(1, MOST_ID),
    "attn_scale": Number(0, 1e6),
    "intermediate_size_mlp": _SIZE,
    "interleave_moe_layer_step": Integer(1, MOST_LAYERS),
    "moe_layers": Nullable(ListOf(Integer(0, MOST_LAYERS))),
    "logit_scale": Nullable(EitherOf(_MULTIPLE, String())),
    **dict.fromkeys(
        (
            "bias", "qk_layernorm", "use_qk_norm", "attn_temperature_tuning", "use_qkv_bias", "use_parallel_residual",
            "apply_residual_connection_post_layernorm", "alibi", "multi_query", "parallel_attn",
            "new_decoder_architecture",
        ),
        Nullable(Boolean()),
    ),
}  # fmt: skip

ATTENTION_FIELDS: Mapping[str, FieldType] = {  # of MPT's `attn_config`
    "alibi_bias_max": Number(0, 2**10),
    "clip_qkv": Nullable(Number(0, 1e6)),
    "softmax_scale": Nullable(Number(0, 1e6)),
}
