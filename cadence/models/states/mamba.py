"""Mamba and Falcon Mamba: mixers alone, no attention and no feed-forward blocks."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM, DecoderParts, MixerLayer
from cadence.models.dims import decoder_parts
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.norm import RMSNorm
from cadence.models.layers.states.mamba import InnerNorms, Mamba, MambaSpec, time_step_rank
from cadence.models.states.shared import mamba_rules, read_mixer_dims
from cadence.models.weight_map import Rule, WeightMap

PREFIXES = (("backbone.embeddings.", "backbone.embedding."), ("backbone.", ""))

OUTER_RULES = (
    Rule("backbone.embeddings.*", "embed.*"),
    Rule("backbone.layers.*.norm.*", "layers.*.attn_norm.*"),
    Rule("backbone.norm_f.*", "norm.*"),
    Rule("lm_head.*", "lm_head.*"),
)

_DEFAULTS = {
    "layer_norm_epsilon": 1e-5,
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": True,
}


_WEIGHTS = WeightMap(OUTER_RULES + mamba_rules("backbone.layers.*.mixer", "layers.*.attn"), PREFIXES)


class MambaForCausalLM(DecoderLM):
    weights = _WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build, InnerNorms.NONE))


class FalconMambaForCausalLM(DecoderLM):
    """What a token says of its time step, b and c are normed."""

    weights = _WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build, InnerNorms.UNSCALED))


def _parts(hf: ConfigView, build: BuildContext, norms: InnerNorms) -> DecoderParts:
    hf = WithDefaults(hf, _DEFAULTS)
    dims = read_mixer_dims(hf)
    spec = MambaSpec(
        hidden=dims.hidden,
        width=int(hf["expand"] * dims.hidden),
        states=hf["state_size"],
        rank=time_step_rank(hf, "time_step_rank"),
        taps=hf["conv_kernel"],
        norms=norms,
        eps=hf.get("mixer_rms_eps", 1e-6),
        bias=bool(hf["use_bias"]),
        conv_bias=bool(hf["use_conv_bias"]),
    )

    def layer(index: int) -> MixerLayer:
        return MixerLayer(Mamba(build, spec), RMSNorm(build, dims.hidden, dims.eps), terms=True)

    return decoder_parts(build, dims, layer, RMSNorm(build, dims.hidden, dims.eps))
