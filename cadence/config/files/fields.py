"""The fields of a model's configuration that are read here, with their types and ranges.

Checked once, when a file is read: what reads a field later needs no check of its own. Ranges are wide enough for every
model there is and narrow enough that no arithmetic on them can overflow; whether sizes fit together, the weights and
the memory is seen when the model is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadence.config.files.decoder_fields import ATTENTION_FIELDS, DECODER_FIELDS
from cadence.config.files.field_types import (
    MOST_ID,
    MOST_ITEMS,
    Boolean,
    EitherOf,
    FieldType,
    Integer,
    ListOf,
    Nullable,
    Number,
    OneOrListOf,
    String,
)
from cadence.config.files.state_fields import STATE_FIELDS
from cadence.core.errors import ModelFileError
from cadence.core.model.architectures import MOST_LAYERS
from cadence.core.shown import shown

_SIZE, _HEADS, _LAYERS = Integer(1, 2**24), Integer(1, 2**16), Integer(1, MOST_LAYERS)
_EXPERTS = Integer(0, 1024)  # 0: feed-forward blocks are no experts
_LENGTH = Integer(1, MOST_ID)
PIXELS = Integer(1, 2**14)  # of a side
_EPSILON, _FACTOR, _THETA, _CAP = Number(0, 1), Number(0, 1e6), Number(0, 1e15), Number(0, 1e6, zero=True)
TOKEN_ID = Integer(-1, MOST_ID)  # -1 = none, in files of old

LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_trained_positions",
)  # fmt: skip

FIELDS: Mapping[str, FieldType] = {
    "vocab_size": _SIZE,
    "hidden_size": _SIZE,
    "n_embd": _SIZE,
    "dim": _SIZE,
    "word_embed_proj_dim": Nullable(_SIZE),
    "intermediate_size": _SIZE,
    "ffn_dim": _SIZE,
    "hidden_dim": _SIZE,
    "n_inner": Nullable(_SIZE),
    "num_hidden_layers": _LAYERS,
    "n_layer": _LAYERS,
    "n_layers": _LAYERS,
    "num_nextn_predict_layers": Nullable(Integer(0, MOST_LAYERS)),
    "num_experts": _EXPERTS,
    "num_local_experts": _EXPERTS,
    "num_experts_per_tok": _EXPERTS,
    "moe_intermediate_size": _SIZE,
    "decoder_sparse_step": _LAYERS,
    "mlp_only_layers": Nullable(ListOf(Integer(0, MOST_LAYERS))),
    "num_attention_heads": _HEADS,
    "n_head": _HEADS,
    "n_heads": _HEADS,
    "num_key_value_heads": Nullable(_HEADS),
    "head_dim": Nullable(_HEADS),
    **dict.fromkeys(LENGTHS, Nullable(_LENGTH)),
    "max_source_positions": Nullable(_LENGTH),
    "num_mel_bins": Nullable(_SIZE),
    "original_max_position_embeddings": Nullable(Integer(2, MOST_ID)),
    "sliding_window": Nullable(Integer(0, MOST_ID)),
    "sliding_window_pattern": Nullable(EitherOf(Integer(0, MOST_LAYERS), String())),
    "max_window_layers": Integer(0, MOST_ID),
    "rms_norm_eps": _EPSILON,
    "layer_norm_epsilon": _EPSILON,
    "layer_norm_eps": _EPSILON,
    "norm_eps": _EPSILON,
    "type_vocab_size": Integer(0, 2**16),
    "relative_attention_num_buckets": Integer(4, 2**16),
    "local_attention": _LENGTH,
    "global_attn_every_n_layers": _LAYERS,
    "global_rope_theta": Nullable(_THETA),
    "local_rope_theta": Nullable(_THETA),
    "rotary_emb_base": Nullable(_THETA),
    "rotary_emb_fraction": Nullable(Number(0, 1)),
    "rope_theta": Nullable(_THETA),
    "rope_local_base_freq": Nullable(_THETA),
    "partial_rotary_factor": Nullable(Number(0, 1)),
    "query_pre_attn_scalar": Number(0, 1e9),
    "attn_logit_softcapping": Nullable(_CAP),
    "final_logit_softcapping": Nullable(_CAP),
    "hidden_act": Nullable(String()),
    "hidden_activation": Nullable(String()),
    "activation_function": String(),
    "activation": Nullable(String()),
    "classifier_activation": String(),
    "position_embedding_type": Nullable(String()),
    "dtype": Nullable(String()),
    "torch_dtype": Nullable(String()),
    "layer_types": Nullable(ListOf(String())),
    "no_rope_layers": Nullable(ListOf(Boolean())),
    "no_rope_layer_interval": Integer(1, MOST_ID),
    **dict.fromkeys(
        (
            "tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "scale_attn_weights",
            "scale_attn_by_inverse_layer_idx", "do_layer_norm_before", "_remove_final_layer_norm", "enable_bias",
            "layer_norm_elementwise_affine", "use_bidirectional_attention", "norm_topk_prob",
            "is_decoder", "is_encoder_decoder", "norm_bias", "classifier_bias",
        ),
        Nullable(Boolean()),
    ),
    "eos_token_id": Nullable(OneOrListOf(TOKEN_ID)),
    "bos_token_id": Nullable(OneOrListOf(TOKEN_ID)),
    "num_labels": Nullable(Integer(1, MOST_ITEMS)),
    "problem_type": Nullable(String()),
    "is_matryoshka": Nullable(Boolean()),
    "matryoshka_dimensions": Nullable(ListOf(_SIZE)),
    "classifier_from_token": Nullable(ListOf(String())),
    "classifier_token_ids": Nullable(ListOf(TOKEN_ID)),
    "is_original_qwen3_reranker": Nullable(Boolean()),
    "method": Nullable(String()),
    "pad_token_id": Nullable(TOKEN_ID),
    "decoder_start_token_id": Nullable(TOKEN_ID),
    "forced_bos_token_id": Nullable(TOKEN_ID),
    "bad_words_ids": Nullable(ListOf(ListOf(Integer(0, MOST_ID)))),
    **dict.fromkeys(
        (
            "image_token_id", "image_token_index", "video_token_id", "audio_token_id", "audio_token_index",
            "boi_token_index", "eoi_token_index",
        ),
        Nullable(TOKEN_ID),
    ),
    "scale_factor": Integer(1, 64),
    "mm_tokens_per_image": Integer(1, 2**16),
    "vision_feature_layer": OneOrListOf(Integer(-MOST_LAYERS, MOST_LAYERS)),
    "vision_feature_select_strategy": String(),
    "projector_hidden_act": String(),
    "multimodal_projector_bias": Boolean(),
    "image_grid_pinpoints": Nullable(ListOf(ListOf(PIXELS))),
    **DECODER_FIELDS,
    **STATE_FIELDS,
}  # fmt: skip

VISION_FIELDS: Mapping[str, FieldType] = {  # of the section that describes a tower
    **{
        name: FIELDS[name]
        for name in (
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "layer_norm_eps",
            "hidden_act",
        )
    },
    "num_channels": Integer(1, 2**10),
    "image_size": PIXELS,
    "patch_size": Integer(1, 2**10),
    "model_type": String(),
}  # fmt: skip

ROPE_FIELDS: Mapping[str, FieldType] = {
    "rope_type": Nullable(String()),
    "type": Nullable(String()),
    "rope_theta": Nullable(_THETA),
    "partial_rotary_factor": Nullable(Number(0, 1)),
    "factor": Nullable(_FACTOR),
    "low_freq_factor": _FACTOR,
    "high_freq_factor": _FACTOR,
    "original_max_position_embeddings": Nullable(Integer(2, MOST_ID)),
    "beta_fast": Nullable(_FACTOR),
    "beta_slow": Nullable(_FACTOR),
    "attention_factor": Nullable(_FACTOR),
    "mscale": Nullable(_CAP),
    "mscale_all_dim": Nullable(_CAP),
    "truncate": Nullable(Boolean()),
    "long_factor": ListOf(_FACTOR),
    "short_factor": ListOf(_FACTOR),
    "mrope_section": Nullable(ListOf(Integer(0, 2**16))),
    "mrope_interleaved": Nullable(Boolean()),
}

_SECTIONS = {"vision_config": VISION_FIELDS, "attn_config": ATTENTION_FIELDS}

GENERATION_FIELDS: Mapping[str, FieldType] = {
    "temperature": Nullable(Number(0, 1e6, zero=True)),
    "top_p": Nullable(Number(0, 1)),
    "top_k": Nullable(Integer(-1, MOST_ID)),
    "min_p": Nullable(Number(0, 1, zero=True)),
    "repetition_penalty": Nullable(Number(0, 1e6)),
    "max_new_tokens": Nullable(Integer(1, MOST_ID)),
    "eos_token_id": FIELDS["eos_token_id"],
    "bos_token_id": FIELDS["bos_token_id"],
    **{name: FIELDS[name] for name in ("decoder_start_token_id", "forced_bos_token_id", "bad_words_ids")},
}


ROPES = ("rope_scaling", "rope_parameters")
ROPE_LAYERS = ("full_attention", "sliding_attention")


def check_config(raw: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """A configuration whose known fields are what they must be; others stay as they are. A length that is null is
    none."""
    absent = [name for name in LENGTHS if name in raw and raw[name] is None]
    checked = check_fields({name: value for name, value in raw.items() if name not in absent}, FIELDS, source, "")
    for name in ("text_config", "vision_config", "attn_config", *ROPES):
        if checked.get(name) is None:
            continue
        if not isinstance(checked[name], dict):
            raise wrong(source, name, "an object", checked[name])
        checked[name] = _check_section(checked[name], source, name)
    return checked


def _check_section(section: Mapping[str, Any], source: Path, name: str) -> dict[str, Any]:
    if name == "text_config":
        return check_config(section, source)
    if name in _SECTIONS:
        return check_fields(section, _SECTIONS[name], source, f"{name}.")
    return _check_rope(section, source, name)


def check_generation(raw: Mapping[str, Any], source: Path) -> dict[str, Any]:
    return check_fields(raw, GENERATION_FIELDS, source, "")


def check_layers(raw: Mapping[str, Any], source: Path) -> None:
    layers, kinds = raw.get("num_hidden_layers"), raw.get("layer_types")
    if isinstance(layers, int) and isinstance(kinds, list) and kinds and len(kinds) < layers:
        message = f"{source}: 'layer_types' names {len(kinds)} layers where 'num_hidden_layers' is {layers}"
        raise ModelFileError(message, "layer_types")


def _check_rope(settings: Mapping[str, Any], source: Path, name: str) -> dict[str, Any]:
    """One flat set of settings, or one per kind of layer."""
    checked = check_fields(settings, ROPE_FIELDS, source, f"{name}.")
    for kind in ROPE_LAYERS:
        if isinstance(checked.get(kind), dict):
            checked[kind] = check_fields(checked[kind], ROPE_FIELDS, source, f"{name}.{kind}.")
    return checked


def check_fields(raw: Mapping[str, Any], kinds: Mapping[str, FieldType], source: Path, prefix: str) -> dict[str, Any]:
    """prefix: of the fields' names in messages"""
    checked = dict(raw)
    for name in raw.keys() & kinds.keys():
        try:
            checked[name] = kinds[name].read(raw[name])
        except (ValueError, OverflowError):
            raise wrong(source, prefix + name, kinds[name].expected, raw[name]) from None
    return checked


def wrong(source: Path, name: str, expected: str, found: object) -> ModelFileError:
    return ModelFileError(f"{source}: {name!r} must be {expected}, found {shown(found)}", name)
