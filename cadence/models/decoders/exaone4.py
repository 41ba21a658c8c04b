"""EXAONE 4: norms after each block instead of before it, and of each head of queries and keys; where it has windows,
layers that see everything do not rotate."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM, SandwichLayer
from cadence.models.decoders.olmo2 import OLMO2_WEIGHTS
from cadence.models.dims import decoder_parts, layer_windows, read_dims, types_in_turn
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec, HeadNorms
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import NoNorm, RMSNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import NoRotary, Rotary

_DEFAULTS = {"rms_norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4}
_FULL, _SLIDING = "full_attention", "sliding_attention"


class Exaone4ForCausalLM(DecoderLM):
    weights = OLMO2_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        window = hf["sliding_window"]
        types = hf.get("layer_types") or _in_turn(dims.layers, hf["sliding_window_pattern"] if window else 0)
        windows = layer_windows(build, window, types)
        rotary, unrotated = Rotary(build, read_rope(hf, dims.head_dim)), NoRotary()

        def norm(size: int = dims.hidden) -> RMSNorm:
            return RMSNorm(build, size, dims.eps)

        def layer(index: int) -> SandwichLayer:
            turns = not window or types[index] == _SLIDING
            spec = AttentionSpec(dims.hidden, dims.shape(windows[index]))
            norms = HeadNorms(norm(dims.head_dim), norm(dims.head_dim))
            return SandwichLayer(
                Attention(build, index, spec, rotary if turns else unrotated, norms),
                GatedMLP(build, dims.hidden, dims.intermediate, dims.activation),
                before=(NoNorm(), NoNorm()),
                after=(norm(), norm()),
            )

        super().__init__(decoder_parts(build, dims, layer, norm()))


def _in_turn(layers: int, pattern: int | str | None) -> list[str]:
    """pattern: every so-many-th layer sees everything, or letters that repeat, L for a window and G for none, the last
    layer having none; 0 or None = all see everything"""
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise ConfigError(f"sliding_window_pattern {pattern!r} is not of L and G", field="sliding_window_pattern")
        kinds = [_SLIDING if pattern[at % len(pattern)] == "L" else _FULL for at in range(layers)]
        return [*kinds[:-1], _FULL]
    return types_in_turn(layers, pattern)
