"""Mamba-2: mixers alone, no attention and no feed-forward blocks."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM, MixerLayer
from cadence.models.dims import Dims, decoder_parts
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.mamba2 import Mamba2, Mamba2Spec
from cadence.models.layers.norm import RMSNorm
from cadence.models.weight_map import Rule, WeightMap

_MIXER, _OURS = "backbone.layers.*.mixer", "layers.*.attn"

_DEFAULTS = {
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "n_groups": 8,
    "expand": 2,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
    "time_step_limit": (0.0, float("inf")),
}


class Mamba2ForCausalLM(DecoderLM):
    weights = WeightMap(
        (
            Rule("backbone.embeddings.*", "embed.*"),
            Rule("backbone.layers.*.norm.*", "layers.*.attn_norm.*"),
            Rule(f"{_MIXER}.in_proj.*", f"{_OURS}.in_proj.*"),
            Rule(f"{_MIXER}.conv1d.weight", f"{_OURS}.conv.weight", taps=True),
            Rule(f"{_MIXER}.conv1d.bias", f"{_OURS}.conv.bias"),
            Rule(f"{_MIXER}.A_log", f"{_OURS}.decay.log.weight"),
            Rule(f"{_MIXER}.dt_bias", f"{_OURS}.decay.dt_bias.weight"),
            Rule(f"{_MIXER}.D", f"{_OURS}.skip.weight"),
            Rule(f"{_MIXER}.norm.*", f"{_OURS}.norm.*"),
            Rule(f"{_MIXER}.out_proj.*", f"{_OURS}.out.*"),
            Rule("backbone.norm_f.*", "norm.*"),
            Rule("lm_head.*", "lm_head.*"),
        ),
        (("backbone.embeddings.", "backbone.embedding."), ("backbone.", "")),
    )

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims, spec = read_mamba_dims(hf), _spec(hf)

        def layer(index: int) -> MixerLayer:
            return MixerLayer(Mamba2(build, spec), RMSNorm(build, dims.hidden, dims.eps), terms=True)

        super().__init__(decoder_parts(build, dims, layer, RMSNorm(build, dims.hidden, dims.eps)))


def read_mamba_dims(hf: ConfigView) -> Dims:
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
        activation=silu_of(hf.get("hidden_act")),
        tied=bool(hf["tie_word_embeddings"]),
    )


def silu_of(activation: str | None) -> str:
    """The one that there is after a short convolution."""
    if activation not in (None, "silu", "swish"):
        raise ConfigError(f"activation {activation!r} of a short convolution is not silu", field="hidden_act")
    return "silu"


def _spec(hf: ConfigView) -> Mamba2Spec:
    heads, head_dim, hidden = hf["num_heads"], hf["head_dim"], hf["hidden_size"]
    if heads * head_dim != int(hf["expand"] * hidden):
        message = f"num_heads {heads} x head_dim {head_dim} is not expand {hf['expand']} x hidden_size {hidden}"
        raise ConfigError(message, field="num_heads")
    least, most = hf["time_step_limit"]
    return Mamba2Spec(
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        groups=hf["n_groups"],
        states=hf["state_size"],
        taps=hf["conv_kernel"],
        norm_group=heads * head_dim,
        eps=hf["layer_norm_epsilon"],
        bias=bool(hf["use_bias"]),
        conv_bias=bool(hf["use_conv_bias"]),
        dt_limit=(least, most),
    )
