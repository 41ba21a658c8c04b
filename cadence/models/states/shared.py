"""What families with states have in common: names of mixers' tensors in checkpoints, sizes, kinds of layers."""

from __future__ import annotations

import math
from typing import Any

from cadence.core.errors import ConfigError
from cadence.models.dims import Dims
from cadence.models.interface.build import ConfigView
from cadence.models.layers.states.mamba2 import Mamba2Spec
from cadence.models.weight_map import Rule

NORM_GROUPS = "mamba_norm_groups"  # over which a Mamba-2 norms apart: of a GGUF file, as llama.cpp does


def mamba_rules(stored: str, ours: str) -> tuple[Rule, ...]:
    """Of `Mamba`, with inner norms or without."""
    norms = (("dt_layernorm", "dt_norm"), ("b_layernorm", "b_norm"), ("c_layernorm", "c_norm"))
    return (
        *_mixer_rules(stored, ours),
        Rule(f"{stored}.x_proj.*", f"{ours}.x_proj.*"),
        Rule(f"{stored}.dt_proj.weight", f"{ours}.dt_proj.weight"),
        Rule(f"{stored}.dt_proj.bias", f"{ours}.decay.dt_bias.weight"),
        *(Rule(f"{stored}.{name}.*", f"{ours}.{norm}.*") for name, norm in norms),
    )


def mamba2_rules(stored: str, ours: str) -> tuple[Rule, ...]:
    """Of `Mamba2`, with a norm or without."""
    return (
        *_mixer_rules(stored, ours),
        Rule(f"{stored}.dt_bias", f"{ours}.decay.dt_bias.weight"),
        Rule(f"{stored}.norm.*", f"{ours}.norm.*"),
    )


def _mixer_rules(stored: str, ours: str) -> tuple[Rule, ...]:
    return (
        Rule(f"{stored}.in_proj.*", f"{ours}.in_proj.*"),
        Rule(f"{stored}.conv1d.weight", f"{ours}.conv.weight", taps=True),
        Rule(f"{stored}.conv1d.bias", f"{ours}.conv.bias"),
        Rule(f"{stored}.A_log", f"{ours}.decay.log.weight"),
        Rule(f"{stored}.D", f"{ours}.skip.weight"),
        Rule(f"{stored}.out_proj.*", f"{ours}.out_proj.*"),
    )


def read_mixer_dims(hf: ConfigView) -> Dims:
    """Of a model without attention and feed-forward blocks."""
    return Dims(
        vocab=hf["vocab_size"],
        hidden=hf["hidden_size"],
        intermediate=0,
        layers=hf["num_hidden_layers"],
        heads=0,
        kv_heads=0,
        head_dim=0,
        eps=hf["layer_norm_epsilon"],
        activation=conv_activation(hf),
        tied=bool(hf["tie_word_embeddings"]),
    )


def conv_activation(hf: ConfigView) -> str:
    """What follows a short convolution."""
    name = hf.get("hidden_act") or "silu"
    if name not in ("silu", "swish"):
        raise ConfigError(f"activation {name!r} after a short convolution is not silu", field="hidden_act")
    return "silu"


def read_mamba2(hf: ConfigView, dims: Dims, width: int, **more: Any) -> Mamba2Spec:
    """Of the layers of a hybrid. width: channels; more: what a family has otherwise"""
    conv_activation(hf)
    heads, head_dim = hf["mamba_n_heads"], hf.get("mamba_d_head") or "auto"
    head_dim = width // heads if head_dim == "auto" else head_dim
    if heads * head_dim != width:
        message = f"mamba_n_heads {heads} of {head_dim} entries each are not the {width} channels of a Mamba layer"
        raise ConfigError(message, field="mamba_n_heads")
    return Mamba2Spec(
        hidden=dims.hidden,
        heads=heads,
        head_dim=head_dim,
        groups=hf["mamba_n_groups"],
        states=hf["mamba_d_state"],
        taps=hf["mamba_d_conv"],
        bias=bool(hf["mamba_proj_bias"]),
        conv_bias=bool(hf["mamba_conv_bias"]),
        dt_limit=read_limits(hf),
        **{
            "norm_group": width // hf.get(NORM_GROUPS, 1),
            "eps": hf["rms_norm_eps"],
            "out_bias": bool(hf["mamba_proj_bias"]),
        }
        | more,
    )


def read_limits(hf: ConfigView) -> tuple[float, float]:
    """Of the time steps of Mamba-2."""
    limits = hf.get("time_step_limit") or (0.0, math.inf)
    if len(limits) != 2:
        raise ConfigError(f"time_step_limit must be two numbers, found {len(limits)}", field="time_step_limit")
    return limits[0], limits[1]


_KINDS = {
    "mamba": "linear_attention",
    "conv": "linear_attention",
    "linear_attention": "linear_attention",
    "attention": "full_attention",
    "full_attention": "full_attention",
}


def layer_kinds(names: list[str]) -> list[str]:
    """Under the one of the names that files have for a kind of layer: full_attention, linear_attention."""
    unknown = set(names) - set(_KINDS)
    if unknown:
        raise ConfigError(f"layer types {sorted(unknown)} are not supported", field="layer_types")
    return [_KINDS[name] for name in names]


def places_of(layers: list[int]) -> dict[int, int]:
    """Layers with attention -> their places in the cache."""
    return {index: place for place, index in enumerate(sorted(layers))}
