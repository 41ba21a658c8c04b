"""Mistral: a Llama whose every layer has a sliding window (or none, where the file says null)."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import LLAMA_WEIGHTS

_DEFAULT_WINDOW = 4096  # of a file that does not mention one


class MistralForCausalLM(DecoderLM):
    weights = LLAMA_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(hf)
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        window = build.window(hf.get("sliding_window", _DEFAULT_WINDOW))
        spec = AttentionSpec(dims.hidden, dims.shape(window))
        super().__init__(gated_decoder(build, dims, lambda index: Attention(build, index, spec, rotary)))
