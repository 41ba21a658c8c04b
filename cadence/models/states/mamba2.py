"""Mamba-2: mixers alone, no attention and no feed-forward blocks."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM, MixerLayer
from cadence.models.dims import decoder_parts
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.states.mamba2 import Mamba2, Mamba2Spec
from cadence.models.states.mamba import OUTER_RULES, PREFIXES
from cadence.models.states.shared import NORM_GROUPS, mamba2_rules, read_limits, read_mixer_dims
from cadence.models.weight_map import WeightMap

_DEFAULTS = {
    "layer_norm_epsilon": 1e-5,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "conv_kernel": 4,
    "n_groups": 8,
    "expand": 2,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
}


class Mamba2ForCausalLM(DecoderLM):
    weights = WeightMap(OUTER_RULES + mamba2_rules("backbone.layers.*.mixer", "layers.*.attn"), PREFIXES)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims, spec = read_mixer_dims(hf), _spec(hf)

        def layer(index: int) -> MixerLayer:
            return MixerLayer(Mamba2(build, spec), RMSNorm(build, dims.hidden, dims.eps), terms=True)

        super().__init__(decoder_parts(build, dims, layer, RMSNorm(build, dims.hidden, dims.eps)))


def _spec(hf: ConfigView) -> Mamba2Spec:
    heads, head_dim, hidden = hf["num_heads"], hf["head_dim"] or 64, hf["hidden_size"]
    if heads * head_dim != int(hf["expand"] * hidden):
        message = f"num_heads {heads} x head_dim {head_dim} is not expand {hf['expand']} x hidden_size {hidden}"
        raise ConfigError(message, field="num_heads")
    return Mamba2Spec(
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        groups=hf["n_groups"],
        states=hf["state_size"],
        taps=hf["conv_kernel"],
        norm_group=heads * head_dim // hf.get(NORM_GROUPS, 1),
        eps=hf["layer_norm_epsilon"],
        bias=bool(hf["use_bias"]),
        out_bias=bool(hf["use_bias"]),
        conv_bias=bool(hf["use_conv_bias"]),
        dt_limit=read_limits(hf),
    )
