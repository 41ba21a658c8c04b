"""What decoders in GGUF files share, in the words of a Hugging Face `config.json`: sizes, rotation, windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cadence.core.errors import WeightsError
from cadence.core.model.architectures import MOST_EXPERTS
from cadence.core.shown import shown
from cadence.gguf.metadata import Metadata

_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_ORIGINAL = 1.0, 4.0, 8192  # the same in every Llama 3.1, 3.2 and 3.3
_LLAMA4_HIGH = 1.0  # there nothing lies between frequencies that are divided and those that are not


def rope_decoder(meta: Metadata, architecture: str, model_type: str, kv_heads: int = 0) -> dict[str, Any]:
    """What all decoders with rotary positions and RMS norms share. kv_heads: where the file has them layer by layer"""
    heads, hidden = meta.integer("attention.head_count"), meta.integer("embedding_length")
    if heads < 1 or hidden < 1:
        raise WeightsError(f"{meta.file.path}: {heads} attention heads over a hidden size of {hidden}")
    head_dim = meta.integer("attention.key_length", hidden // heads)
    if head_dim < 1:
        raise WeightsError(f"{meta.file.path}: {heads} attention heads over a hidden size of {hidden}")
    if meta.integer("attention.value_length", head_dim) != head_dim:
        raise WeightsError(f"{meta.file.path}: keys of {head_dim} and values of another length are not supported")
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": meta.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or meta.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": meta.integer("feed_forward_length"),
        "max_position_embeddings": meta.integer("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon", 1e-6),
        "hidden_act": "silu",
        "attention_bias": meta.has_tensor("blk.0.attn_q.bias"),
        "rope_theta": meta.number("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(meta),
        "partial_rotary_factor": meta.integer("rope.dimension_count", head_dim) / head_dim,
    }


def _rope_scaling(meta: Metadata) -> dict[str, Any] | None:
    kind = meta.get("rope.scaling.type", "none")
    factor = meta.number("rope.scaling.factor", meta.number("rope.scale_linear"))
    if meta.has_tensor("rope_factors_long.weight"):
        return _longrope(meta)
    if meta.has_tensor("rope_freqs.weight"):
        return _llama3_scaling(meta)
    if not isinstance(kind, str):
        raise meta.wrong(f"{meta.arch}.rope.scaling.type", "a text", kind)
    if kind == "none" or not factor:
        return None
    if kind not in ("linear", "yarn"):
        raise WeightsError(f"{meta.file.path}: rope scaling {shown(kind)} is none of linear, yarn, longrope, llama3")
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        names = {
            "original_max_position_embeddings": "original_context_length",
            "attention_factor": "yarn_attn_factor",
            "beta_fast": "yarn_beta_fast",
            "beta_slow": "yarn_beta_slow",
        }
        found = {name: meta.number(f"rope.scaling.{key}") for name, key in names.items()}
        scaling |= {name: value for name, value in found.items() if value is not None}
    return scaling


def _longrope(meta: Metadata) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "long_factor": meta.floats("rope_factors_long.weight"),
        "short_factor": meta.floats("rope_factors_short.weight"),
        "original_max_position_embeddings": meta.integer("rope.scaling.original_context_length"),
    }


def _llama3_scaling(meta: Metadata) -> dict[str, Any] | None:
    """The file keeps only the divisor of each frequency; their largest is the factor, the rest follows from it."""
    divisors = meta.floats("rope_freqs.weight")
    if not divisors or not all(0.5 < divisor < 1e6 for divisor in divisors):
        raise meta.wrong("tensor 'rope_freqs.weight'", "divisors of frequencies", divisors)
    factor = round(max(divisors), 3)
    if factor == 1.0:
        return None
    theta, dim = meta.number("rope.freq_base", 10_000.0), 2 * len(divisors)
    low, high = _LLAMA3_LOW, _LLAMA4_HIGH if meta.arch == "llama4" else _LLAMA3_HIGH
    for index, divisor in enumerate(divisors):
        # Over the length of pretraining.
        turns = _LLAMA3_ORIGINAL * max(theta, 1.0) ** (-2 * index / dim) / (2 * math.pi)
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0) if high > low else float(turns >= low)
        if abs(1 / ((1 - smooth) / factor + smooth) - divisor) > 1e-3 * divisor:
            raise WeightsError(f"{meta.file.path}: tensor 'rope_freqs.weight' is not a Llama 3 scaling by {factor}")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL,
    }


def experts(meta: Metadata) -> tuple[int, int]:
    """(how many a layer has, how many a token takes)"""
    count, taken = meta.integer("expert_count"), meta.integer("expert_used_count")
    if not 1 <= taken <= count <= MOST_EXPERTS:
        message = f"{taken} of {count} experts a token, where at most {MOST_EXPERTS} are read"
        raise WeightsError(f"{meta.file.path}: {meta.arch}.expert_used_count and expert_count say {message}")
    return count, taken


def layer_types(meta: Metadata, every: int) -> list[str]:
    """One layer in `every` sees everything, the last of each run; a file may name another rhythm or each layer."""
    pattern = meta.get("attention.sliding_window_pattern", every)
    layers = meta.integer("block_count")
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        slides = [(index + 1) % pattern != 0 for index in range(layers)] if pattern else [False] * layers
    elif isinstance(pattern, np.ndarray):
        slides = [bool(value) for value in pattern.tolist()]
    else:
        raise meta.wrong(f"{meta.arch}.attention.sliding_window_pattern", "a number or a list", pattern)
    return ["sliding_attention" if sliding else "full_attention" for sliding in slides]
