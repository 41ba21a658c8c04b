"""The families of `cadence/models/decoders` in GGUF files: their metadata in the words of a Hugging Face `config.json`.
What the format does not store is as llama.cpp has it in its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cadence.core.errors import WeightsError
from cadence.gguf.decoder_metadata import experts, layer_types, rope_decoder
from cadence.gguf.metadata import Metadata

_EPS = "attention.layer_norm_epsilon"
_STARCODER2_WINDOW = 4096
_LLAMA4_CHUNK, _LLAMA4_GROWTH, _LLAMA4_UNROTATED = 8192, 0.1, 4  # every so-many-th layer does not rotate
_LLAMA4_WITHOUT_NORMS = 128  # experts: that release norms no queries and keys
_TWO_NORMS = "blk.0.attn_norm_2.weight"  # of a Falcon


def _granite(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "GraniteForCausalLM", "granite") | _granite_factors(meta)


def _granite_moe(meta: Metadata) -> dict[str, Any]:
    if meta.integer("expert_shared_feed_forward_length", 0):
        raise WeightsError(f"{meta.file.path}: a Granite with shared experts is not read from GGUF files")
    count, taken = experts(meta)
    own = {"num_local_experts": count, "num_experts_per_tok": taken}
    return rope_decoder(meta, "GraniteMoeForCausalLM", "granitemoe") | own | _granite_factors(meta)


def _granite_factors(meta: Metadata) -> dict[str, Any]:
    return {
        "embedding_multiplier": meta.number("embedding_scale", 1.0),
        "residual_multiplier": meta.number("residual_scale", 1.0),
        "attention_multiplier": meta.number("attention.scale", 1.0),
        "logits_scaling": meta.number("logit_scale", 1.0),
        "mlp_bias": meta.has_tensor("blk.0.ffn_up.bias"),
    }


def _llama4(meta: Metadata) -> dict[str, Any]:
    """Chunks, and how queries grow, are those of all of them."""
    if meta.integer("attention.sliding_window", _LLAMA4_CHUNK) == 0:
        raise WeightsError(f"{meta.file.path}: a Llama 4 without chunks is not read from GGUF files")
    count, taken = experts(meta)
    config = rope_decoder(meta, "Llama4ForCausalLM", "llama4_text")
    layers = config["num_hidden_layers"]
    return config | {
        "num_local_experts": count,
        "num_experts_per_tok": taken,
        "intermediate_size": meta.integer("expert_feed_forward_length"),
        "intermediate_size_mlp": config["intermediate_size"],
        "interleave_moe_layer_step": meta.integer("interleave_moe_layer_step"),
        "use_qk_norm": count != _LLAMA4_WITHOUT_NORMS,
        "attention_chunk_size": _LLAMA4_CHUNK,
        "layer_types": [kind.replace("sliding", "chunked") for kind in layer_types(meta, 4)],
        "no_rope_layers": [(index + 1) % _LLAMA4_UNROTATED != 0 for index in range(layers)],
        "attn_temperature_tuning": True,
        "floor_scale": _LLAMA4_CHUNK,
        "attn_scale": _LLAMA4_GROWTH,
    }


def _olmo2(meta: Metadata) -> dict[str, Any]:
    """With windows it is an OLMo 3, whose layers with one are not scaled."""
    window = meta.integer("attention.sliding_window", 0)
    if not window:
        return rope_decoder(meta, "Olmo2ForCausalLM", "olmo2")
    return rope_decoder(meta, "Olmo3ForCausalLM", "olmo3") | {
        "sliding_window": window,
        "layer_types": layer_types(meta, 4),
    }


def _exaone4(meta: Metadata) -> dict[str, Any]:
    window = meta.integer("attention.sliding_window", 0)
    types = layer_types(meta, 4) if window else ["full_attention"] * meta.integer("block_count")
    config = rope_decoder(meta, "Exaone4ForCausalLM", "exaone4")
    return config | {"sliding_window": window or None, "layer_types": types}


def _glm4(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "Glm4ForCausalLM", "glm4")


def _chatglm(meta: Metadata) -> dict[str, Any]:
    biased = meta.has_tensor("blk.0.attn_qkv.bias") or meta.has_tensor("blk.0.attn_q.bias")
    return rope_decoder(meta, "GlmForCausalLM", "glm") | {"attention_bias": biased}


def _gemma(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "GemmaForCausalLM", "gemma") | {"hidden_act": "gelu_pytorch_tanh"}


def _cohere(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "CohereForCausalLM", "cohere") | {
        "layer_norm_eps": meta.number(_EPS, 1e-5),
        "logit_scale": meta.number("logit_scale", 1.0),
        "use_qk_norm": meta.has_tensor("blk.0.attn_q_norm.weight"),
    }


def _cohere2(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "Cohere2ForCausalLM", "cohere2") | {
        "layer_norm_eps": meta.number(_EPS, 1e-5),
        "logit_scale": meta.number("logit_scale", 1.0),
        "sliding_window": meta.integer("attention.sliding_window"),
        "layer_types": layer_types(meta, 4),
    }


def _starcoder2(meta: Metadata) -> dict[str, Any]:
    """Its window is not in the file: that of all of them."""
    return rope_decoder(meta, "Starcoder2ForCausalLM", "starcoder2") | {
        "norm_epsilon": meta.number(_EPS, 1e-5),
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": meta.integer("attention.sliding_window", _STARCODER2_WINDOW) or None,
        "use_bias": meta.has_tensor("blk.0.ffn_up.bias"),
    }


def _stablelm(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "StableLmForCausalLM", "stablelm") | {
        "layer_norm_eps": meta.number(_EPS, 1e-5),
        "use_parallel_residual": not meta.has_tensor("blk.0.ffn_norm.weight"),
        "use_qkv_bias": meta.has_tensor("blk.0.attn_q.bias"),
        "qk_layernorm": meta.has_tensor("blk.0.attn_q_norm.weight"),
    }


def _phi2(meta: Metadata) -> dict[str, Any]:
    own = {"layer_norm_eps": meta.number(_EPS, 1e-5), "hidden_act": "gelu_new"}
    return rope_decoder(meta, "PhiForCausalLM", "phi") | own


def _gptj(meta: Metadata) -> dict[str, Any]:
    return {
        "architectures": ["GPTJForCausalLM"],
        "model_type": "gptj",
        "n_embd": meta.integer("embedding_length"),
        "n_layer": meta.integer("block_count"),
        "n_head": meta.integer("attention.head_count"),
        "n_inner": meta.integer("feed_forward_length"),
        "n_positions": meta.integer("context_length"),
        "rotary_dim": meta.integer("rope.dimension_count"),
        "layer_norm_epsilon": meta.number(_EPS, 1e-5),
    }


def _gpt_neox(meta: Metadata) -> dict[str, Any]:
    return rope_decoder(meta, "GPTNeoXForCausalLM", "gpt_neox") | {
        "layer_norm_eps": meta.number(_EPS, 1e-5),
        "hidden_act": "gelu",
        "attention_bias": meta.has_tensor("blk.0.attn_qkv.bias"),
        "use_parallel_residual": meta.flag("use_parallel_residual"),
    }


def _falcon(meta: Metadata) -> dict[str, Any]:
    config = rope_decoder(meta, "FalconForCausalLM", "falcon")
    newer = meta.has_tensor(_TWO_NORMS) or config["num_key_value_heads"] > 1
    return config | {
        "layer_norm_epsilon": meta.number(_EPS, 1e-5),
        "activation": "gelu",
        "ffn_hidden_size": config["intermediate_size"],
        "num_kv_heads": config["num_key_value_heads"],
        "new_decoder_architecture": newer,
        "num_ln_in_parallel_attn": 2 if meta.has_tensor(_TWO_NORMS) else 1,
        "multi_query": True,
        "parallel_attn": True,
        "bias": meta.has_tensor("blk.0.attn_qkv.bias"),
        "alibi": False,
    }


def _bloom(meta: Metadata) -> dict[str, Any]:
    heads = meta.integer("attention.head_count")
    return {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": meta.integer("embedding_length"),
        "num_hidden_layers": meta.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "seq_length": meta.integer("context_length"),
        "layer_norm_epsilon": meta.number(_EPS, 1e-5),
    }


def _mpt(meta: Metadata) -> dict[str, Any]:
    steepest = meta.number("attention.max_alibi_bias", 0.0)
    if not steepest:
        raise WeightsError(f"{meta.file.path}: an MPT without ALiBi is not supported")
    return {
        "architectures": ["MptForCausalLM"],
        "model_type": "mpt",
        "d_model": meta.integer("embedding_length"),
        "n_layers": meta.integer("block_count"),
        "n_heads": meta.integer("attention.head_count"),
        "max_seq_len": meta.integer("context_length"),
        "layer_norm_epsilon": meta.number(_EPS, 1e-5),
        "attn_config": {"alibi": True, "alibi_bias_max": steepest, "clip_qkv": meta.number("attention.clamp_kqv")},
    }


DECODER_FAMILIES: Mapping[str, Callable[[Metadata], dict[str, Any]]] = {
    "bloom": _bloom,
    "chatglm": _chatglm,
    "cohere2": _cohere2,
    "command-r": _cohere,
    "exaone4": _exaone4,
    "falcon": _falcon,
    "gemma": _gemma,
    "glm4": _glm4,
    "gptj": _gptj,
    "gptneox": _gpt_neox,
    "granite": _granite,
    "granitemoe": _granite_moe,
    "llama4": _llama4,
    "mpt": _mpt,
    "olmo2": _olmo2,
    "phi2": _phi2,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
}
