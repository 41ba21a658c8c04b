"""Qwen 2 and 2.5: a Llama with biases on queries, keys and values, and optionally windows on its upper layers."""

from __future__ import annotations

from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, layer_windows, read_dims
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import LLAMA_WEIGHTS


def qwen_windows(hf: ConfigView, build: BuildContext, num_layers: int) -> list[int]:
    """None without `use_sliding_window`; unless `layer_types` says so, only layers from `max_window_layers` on."""
    sliding_window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
    first = hf.get("max_window_layers", 28) if sliding_window is not None else num_layers
    by_depth = ["sliding_attention" if index >= first else "full_attention" for index in range(num_layers)]
    return layer_windows(build, sliding_window, hf.get("layer_types") or by_depth)


class Qwen2ForCausalLM(DecoderLM):
    weights = LLAMA_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(hf)
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        windows = qwen_windows(hf, build, dims.layers)

        def attention(index: int) -> Attention:
            spec = AttentionSpec(dims.hidden, dims.shape(windows[index]), qkv_bias=True)
            return Attention(build, index, spec, rotary)

        super().__init__(gated_decoder(build, dims, attention))
