"""What families with states have in common: names of mixers' tensors in checkpoints, sizes, kinds of layers."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.dims import Dims
from cadence.models.interface.build import ConfigView
from cadence.models.weight_map import Rule


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
        Rule(f"{stored}.out_proj.*", f"{ours}.out.*"),
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


def places_of(kinds: list[str], kind: str) -> dict[int, int]:
    """Layers of a kind -> the place of each among them."""
    own = [index for index, each in enumerate(kinds) if each == kind]
    return {index: place for place, index in enumerate(own)}
