"""What a GGUF file says of a checkpoint of transformers, as llama.cpp's converter has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gguf import MODEL_ARCH, MODEL_ARCH_NAMES
from tokenizers import pre_tokenizers

_ROTATES_ALL_KINDS = ("full_attention", "sliding_attention")

# Of each key, the names that configurations have for it; the first one that says something counts.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "block_count": ("num_hidden_layers", "n_layer", "n_layers"),
    "context_length": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "feed_forward_length": ("intermediate_size_mlp", "intermediate_size", "ffn_hidden_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.scale": ("attention_multiplier",),
    "attention.sliding_window": ("sliding_window",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "use_parallel_residual": ("use_parallel_residual",),
    "interleave_moe_layer_step": ("interleave_moe_layer_step",),
    "full_attention_interval": ("full_attention_interval",),
    "shortconv.l_cache": ("conv_L_cache",),
    "ssm.conv_kernel": ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim"),
    "ssm.state_size": ("state_size", "mamba_d_state", "linear_key_head_dim"),
    "ssm.group_count": ("n_groups", "mamba_n_groups", "linear_num_key_heads"),
}


def metadata_of(config: Mapping[str, Any], arch: MODEL_ARCH) -> dict[str, Any]:
    name = MODEL_ARCH_NAMES[arch]
    found = {key: next((config[each] for each in names if config.get(each) is not None), None)
             for key, names in _NAMES.items()}  # fmt: skip
    own = {MODEL_ARCH.MAMBA: _mamba, MODEL_ARCH.MAMBA2: _mamba2, MODEL_ARCH.MPT: _mpt}.get(arch)
    found |= own(config, found) if own is not None else _attention(config, found)
    if "mamba_d_state" in config:
        found |= _mamba_beside(config)
    if _attending(config) is not None and config["model_type"] != "qwen3_next":
        heads, attends = config["num_key_value_heads"], _attending(config) or []
        found["attention.head_count_kv"] = [heads if at in attends else 0 for at in range(found["block_count"])]
    if config["model_type"] == "qwen3_next":
        values = config["linear_num_value_heads"]
        found |= {"ssm.time_step_rank": values, "ssm.inner_size": values * config["linear_value_head_dim"]}
    if arch is MODEL_ARCH.FALCON_H1:  # in the matrices
        found |= {"embedding_scale": None, "residual_scale": None, "logit_scale": None}
    found["context_length"] = found["context_length"] or 512
    tokens = _tokenizer(config["vocab_size"])
    return {f"{name}.{key}": value for key, value in found.items() if value is not None} | tokens


def _attention(config: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    hidden, heads = found["embedding_length"], found["attention.head_count"]
    head_dim = config.get("head_dim") or hidden // heads
    rope = config.get("rope_parameters") or {}
    rope = rope.get(_ROTATES_ALL_KINDS[0], rope)
    turned = config.get("rotary_dim") or int(head_dim * rope.get("partial_rotary_factor", 1.0))
    said = {"rope.freq_base": rope.get("rope_theta"), "rope.dimension_count": turned}
    if rope.get("rope_type") == "yarn":
        said |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"]}
        said |= {"rope.scaling.original_context_length": rope["original_max_position_embeddings"]}
        said |= {f"rope.scaling.yarn_{key}": rope.get(key) for key in ("beta_fast", "beta_slow")}
    if config["model_type"] == "falcon" and not config["new_decoder_architecture"]:
        said["attention.head_count_kv"] = 1
    if config["model_type"] in ("cohere2", "exaone4", "olmo3"):
        said["attention.sliding_window_pattern"] = [kind == _ROTATES_ALL_KINDS[1] for kind in config["layer_types"]]
    if config["model_type"] == "llama4_text":
        said["expert_feed_forward_length"] = config["intermediate_size"]
    if found["feed_forward_length"] is None:
        said["feed_forward_length"] = 4 * hidden
    if config["model_type"] == "lfm2" and config["block_auto_adjust_ff_dim"]:
        multiple = config["block_multiple_of"]
        said["feed_forward_length"] = -(-int(2 * found["feed_forward_length"] / 3) // multiple) * multiple
    return said


def _mamba(config: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_nothing_attends(config, found),
        "ssm.inner_size": config["intermediate_size"],
        "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def _mamba2(config: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    inner = config["num_heads"] * config["head_dim"]
    return {
        **_nothing_attends(config, found),
        "ssm.inner_size": inner,
        "ssm.time_step_rank": config["num_heads"],
        "attention.key_length": None,
        "attention.value_length": None,
    }


def _nothing_attends(config: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    said = {"context_length": 2**20, "feed_forward_length": 0, "attention.head_count": 0}
    eps = "attention.layer_norm_epsilon"
    return said | {"attention.layer_norm_rms_epsilon": found[eps], eps: None}


def _mamba_beside(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of layers with states beside layers with attention."""
    width = config.get("mamba_d_ssm") or int(config["mamba_expand"] * config["hidden_size"])
    found = {"ssm.inner_size": width, "ssm.time_step_rank": config.get("mamba_n_heads") or config["mamba_dt_rank"]}
    if config["model_type"] in ("bamba", "granitemoehybrid"):
        rotates = config["model_type"] == "bamba" or config["position_embedding_type"] == "rope"
        found["rope.scaling.finetuned"] = rotates
    return found


def _attending(config: Mapping[str, Any]) -> list[int] | None:
    """None where all layers do, or none."""
    if config["model_type"] == "bamba":
        return list(config["attn_layer_indices"])
    if "attn_layer_period" in config:
        first, period = config["attn_layer_offset"], config["attn_layer_period"]
        return list(range(first, config["num_hidden_layers"], period))
    kinds = config.get("layer_types") or []
    attends = [at for at, kind in enumerate(kinds) if kind == "full_attention"]
    return attends if set(kinds) & {"conv", "linear_attention"} else None


def _mpt(config: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    own = config["attn_config"]
    said = {"attention.max_alibi_bias": float(own["alibi_bias_max"]), "attention.clamp_kqv": own["clip_qkv"]}
    return said | {"feed_forward_length": 4 * config["d_model"], "logit_scale": None}


def _tokenizer(vocab: int) -> dict[str, Any]:
    """One that encodes any text, byte by byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*letters, "ab", *[f"<{at}>" for at in range(vocab - len(letters) - 1)]],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": vocab - 2,
        "tokenizer.ggml.eos_token_id": vocab - 1,
    }
