"""GGUF metadata of models with states, in the words of a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cadence.core.errors import WeightsError
from cadence.gguf.decoder_metadata import experts, rope_decoder
from cadence.gguf.metadata import Metadata

_INNER_EPS = 1e-6  # of the norms inside Falcon Mamba's mixers, which no file says


def _mixers_alone(meta: Metadata, architecture: str, model_type: str) -> dict[str, Any]:
    """Of a model without attention: how long its texts may be is the user's to say."""
    hidden, width = meta.integer("embedding_length"), meta.integer("ssm.inner_size")
    if hidden < 1 or width < 1:
        raise WeightsError(f"{meta.file.path}: {width} channels of a mixer over a hidden size of {hidden}")
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": meta.integer("block_count"),
        "layer_norm_epsilon": meta.number("attention.layer_norm_rms_epsilon", 1e-5),
        "conv_kernel": meta.integer("ssm.conv_kernel"),
        "state_size": meta.integer("ssm.state_size"),
        "expand": width / hidden,
        "use_bias": meta.has_tensor("blk.0.ssm_in.bias"),
        "use_conv_bias": meta.has_tensor("blk.0.ssm_conv1d.bias"),
        "hidden_act": "silu",
    }


def _mamba(meta: Metadata) -> dict[str, Any]:
    normed = meta.flag("ssm.dt_b_c_rms")
    names = ("FalconMambaForCausalLM", "falcon_mamba") if normed else ("MambaForCausalLM", "mamba")
    own = {"time_step_rank": meta.integer("ssm.time_step_rank"), "mixer_rms_eps": _INNER_EPS}
    return _mixers_alone(meta, *names) | own


def _mamba2(meta: Metadata) -> dict[str, Any]:
    config, heads = _mixers_alone(meta, "Mamba2ForCausalLM", "mamba2"), meta.integer("ssm.time_step_rank")
    groups = meta.integer("ssm.group_count", 1)
    return config | {
        "num_heads": heads,
        "head_dim": meta.integer("ssm.inner_size") // max(heads, 1),
        "n_groups": groups,
        "mamba_norm_groups": groups,
    }


def _attending(meta: Metadata) -> tuple[int, list[int]]:
    """(heads of keys, layers that have them)"""
    counts = meta.per_layer("attention.head_count_kv")
    layers = [index for index, count in enumerate(counts) if count]
    if not layers or len({counts[index] for index in layers}) > 1:
        raise meta.wrong(f"{meta.arch}.attention.head_count_kv", "0, or the same of every layer with attention", counts)
    return counts[layers[0]], layers


def _period(meta: Metadata, layers: list[int], what: str) -> dict[str, int]:
    """Every so many-th layer, from one on."""
    count = meta.integer("block_count")
    period = layers[1] - layers[0] if len(layers) > 1 else max(count, 1)
    if layers != [index for index in range(count) if index % period == layers[0]]:
        raise WeightsError(f"{meta.file.path}: layers {layers} with {what} are not every so many-th")
    return {f"{what}_layer_period": period, f"{what}_layer_offset": layers[0]}


def _having(meta: Metadata, name: str) -> list[int]:
    """Layers with a matrix of this name."""
    return [index for index in range(meta.integer("block_count")) if meta.has_tensor(f"blk.{index}.{name}.weight")]


def _kinds(meta: Metadata, attending: list[int], kind: str, other: str) -> list[str]:
    """Of each layer."""
    return [kind if index in attending else other for index in range(meta.integer("block_count"))]


def _jamba(meta: Metadata) -> dict[str, Any]:
    kv_heads, attending = _attending(meta)
    config = rope_decoder(meta, "JambaForCausalLM", "jamba", kv_heads) | _period(meta, attending, "attn")
    hidden = config["hidden_size"]
    config |= {
        "mamba_d_conv": meta.integer("ssm.conv_kernel"),
        "mamba_d_state": meta.integer("ssm.state_size"),
        "mamba_expand": meta.integer("ssm.inner_size") / hidden,
        "mamba_dt_rank": meta.integer("ssm.time_step_rank"),
        "num_experts": 1,
    }
    routed = _having(meta, "ffn_gate_inp")
    if routed:
        count, taken = experts(meta)
        config |= _period(meta, routed, "expert") | {"num_experts": count, "num_experts_per_tok": taken}
    return config


def _mamba2_layers(meta: Metadata, first: int) -> dict[str, Any]:
    """Of a hybrid; first: a layer that has one"""
    heads, width = meta.integer("ssm.time_step_rank"), meta.integer("ssm.inner_size")
    groups = meta.integer("ssm.group_count", 1)
    return {
        "mamba_d_conv": meta.integer("ssm.conv_kernel"),
        "mamba_d_state": meta.integer("ssm.state_size"),
        "mamba_n_heads": heads,
        "mamba_d_head": width // max(heads, 1),
        "mamba_n_groups": groups,
        "mamba_norm_groups": groups,
        "mamba_proj_bias": meta.has_tensor(f"blk.{first}.ssm_in.bias"),
        "mamba_conv_bias": meta.has_tensor(f"blk.{first}.ssm_conv1d.bias"),
    }


def _granite_hybrid(meta: Metadata) -> dict[str, Any]:
    kv_heads, attending = _attending(meta)
    config = rope_decoder(meta, "GraniteMoeHybridForCausalLM", "granitemoehybrid", kv_heads)
    others = [index for index in range(meta.integer("block_count")) if index not in attending]
    kinds = _kinds(meta, attending, "attention", "mamba")
    count, taken = experts(meta) if meta.integer("expert_count", 0) else (0, 0)
    return (
        config
        | _mamba2_layers(meta, others[0] if others else 0)
        | {
            "layer_types": kinds,
            "attention_bias": meta.has_tensor(f"blk.{attending[0]}.attn_q.bias"),
            "mamba_expand": meta.integer("ssm.inner_size") / config["hidden_size"],
            "num_local_experts": count,
            "num_experts_per_tok": taken,
            "shared_intermediate_size": _shared_size(meta, config["intermediate_size"]),
            "position_embedding_type": "rope" if meta.get("rope.scaling.finetuned", True) else "nope",
            "attention_multiplier": meta.number("attention.scale", config["head_dim"] ** -0.5)
            or config["head_dim"] ** -0.5,
            "embedding_multiplier": meta.number("embedding_scale", 1.0) or 1.0,
            "residual_multiplier": meta.number("residual_scale", 1.0) or 1.0,
            "logits_scaling": meta.number("logit_scale", 1.0) or 1.0,
        }
    )


def _shared_size(meta: Metadata, otherwise: int) -> int:
    """Of the block that all tokens pass."""
    for name in ("ffn_up_shexp", "ffn_up"):
        if meta.has_tensor(f"blk.0.{name}.weight"):
            return meta.file.tensors[f"blk.0.{name}.weight"].shape[0]
    return otherwise


def _falcon_h1(meta: Metadata) -> dict[str, Any]:
    """Its multipliers are in the matrices."""
    config = rope_decoder(meta, "FalconH1ForCausalLM", "falcon_h1") | _mamba2_layers(meta, 0)
    return config | {
        "mamba_d_ssm": meta.integer("ssm.inner_size"),
        "mamba_rms_norm": meta.has_tensor("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": meta.has_tensor("blk.0.ssm_out.bias"),
        "mlp_bias": meta.has_tensor("blk.0.ffn_up.bias"),
    }


def _lfm2(meta: Metadata) -> dict[str, Any]:
    kv_heads, attending = _attending(meta)
    config = rope_decoder(meta, "Lfm2ForCausalLM", "lfm2", kv_heads)
    return config | {
        "norm_eps": config["rms_norm_eps"],
        "full_attn_idxs": attending,
        "conv_L_cache": meta.integer("shortconv.l_cache"),
        "conv_bias": meta.has_tensor("blk.0.shortconv.in_proj.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def _qwen3_next(meta: Metadata) -> dict[str, Any]:
    """Shares of the experts that a token takes add up to 1, which no file says otherwise."""
    kv_heads, attending = max(meta.per_layer("attention.head_count_kv")), _having(meta, "attn_q")
    config = rope_decoder(meta, "Qwen3NextForCausalLM", "qwen3_next", kv_heads)
    values = meta.integer("ssm.time_step_rank")
    config |= {
        "layer_types": [
            "full_attention" if index in attending else "linear_attention"
            for index in range(meta.integer("block_count"))
        ],
        "linear_conv_kernel_dim": meta.integer("ssm.conv_kernel"),
        "linear_key_head_dim": meta.integer("ssm.state_size"),
        "linear_num_key_heads": meta.integer("ssm.group_count"),
        "linear_num_value_heads": values,
        "linear_value_head_dim": meta.integer("ssm.inner_size") // max(values, 1),
        "num_experts": 0,
    }
    if meta.integer("expert_count", 0):
        count, taken = experts(meta)
        config |= {
            "num_experts": count,
            "num_experts_per_tok": taken,
            "mlp_only_layers": _having(meta, "ffn_up"),
            "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
            "shared_expert_intermediate_size": meta.integer("expert_shared_feed_forward_length"),
            "norm_topk_prob": True,
        }
    return config


STATE_FAMILIES: dict[str, Callable[[Metadata], dict[str, Any]]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "granitehybrid": _granite_hybrid,
    "falcon-h1": _falcon_h1,
    "lfm2": _lfm2,
    "qwen3next": _qwen3_next,
}
STATES_WITH_EXPERTS = ("jamba", "granitehybrid", "qwen3next")
