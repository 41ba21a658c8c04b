"""SmolLM3: a Llama in which some layers, every fourth unless the file says which, do not rotate queries and keys."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, layer_windows, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import NoRotary, Rotary
from cadence.models.llama import LLAMA_WEIGHTS

_THETA = 2_000_000.0


class SmolLM3ForCausalLM(DecoderLM):
    weights = LLAMA_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(WithDefaults(hf, {"num_key_value_heads": 4, "tie_word_embeddings": True}))
        rotary, unrotated = Rotary(build, read_rope(hf, dims.head_dim, theta=_THETA)), NoRotary()
        rotated = _rotated(hf, dims.layers)
        windows = _windows(hf, build, rotated)
        bias = bool(hf.get("attention_bias", False))

        def attention(index: int) -> Attention:
            spec = AttentionSpec(dims.hidden, dims.shape(windows[index]), qkv_bias=bias, out_bias=bias)
            return Attention(build, index, spec, rotary if rotated[index] else unrotated)

        super().__init__(gated_decoder(build, dims, attention, mlp_bias=bool(hf.get("mlp_bias", False))))


def _rotated(hf: ConfigView, layers: int) -> list[bool]:
    """Which layers rotate: those with a 1 in `no_rope_layers`, or all but every `no_rope_layer_interval`-th."""
    named = hf.get("no_rope_layers")
    if named is None:
        interval = hf.get("no_rope_layer_interval", 4)
        return [(index + 1) % interval != 0 for index in range(layers)]
    if len(named) < layers:
        message = f"no_rope_layers names {len(named)} layers where num_hidden_layers is {layers}"
        raise ConfigError(message, field="no_rope_layers")
    return [bool(rotates) for rotates in named]


def _windows(hf: ConfigView, build: BuildContext, rotated: list[bool]) -> list[int]:
    """None without `use_sliding_window`; unless `layer_types` says so, only layers that do not rotate."""
    sliding_window = hf.get("sliding_window") if hf.get("use_sliding_window", False) else None
    by_rotation = ["full_attention" if rotates else "sliding_attention" for rotates in rotated]
    return layer_windows(build, sliding_window, hf.get("layer_types") or by_rotation)
