"""Bamba: layers of Mamba-2, a few of attention, half of whose heads' entries are rotated."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mixer import Mixer
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.layers.states.mamba2 import Mamba2
from cadence.models.llama import ATTENTION_RULES, IGNORED
from cadence.models.states.jamba import MLP_RULES, OUTER_RULES
from cadence.models.states.shared import mamba2_rules, places_of, read_mamba2
from cadence.models.weight_map import WeightMap

_DEFAULTS = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}


class BambaForCausalLM(DecoderLM):
    weights = WeightMap(
        OUTER_RULES + ATTENTION_RULES + mamba2_rules("model.layers.*.mamba", "layers.*.attn") + MLP_RULES,
        ignored=IGNORED,
    )

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        attends = places_of(hf.get("attn_layer_indices") or [])
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        bias = bool(hf.get("attention_bias", False))
        attention = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=bias, out_bias=bias)
        mamba = read_mamba2(hf, dims, int(hf["mamba_expand"] * dims.hidden))

        def mixer(index: int) -> Mixer:
            if index in attends:
                return Attention(build, attends[index], attention, rotary)
            return Mamba2(build, mamba)

        super().__init__(gated_decoder(build, dims, mixer, mlp_bias=bool(hf.get("mlp_bias", False))))
