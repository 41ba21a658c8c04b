"""Gemma 3, text: normalised queries and keys, five windowed layers to each full one, a rotary base for each kind.
EmbeddingGemma is one whose tokens see each other both ways."""

from __future__ import annotations

from typing import Any

from cadence.kernels.interface.attention_batch import Sees
from cadence.models.decoder import DecoderLM
from cadence.models.dims import layer_windows, read_dims, types_in_turn
from cadence.models.gemma import GEMMA_RULES, gemma_decoder, gemma_norm
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec, HeadNorms
from cadence.models.layers.positions.rope_config import RopeConfig, read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import IGNORED, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

GEMMA3_RULES = (
    *GEMMA_RULES,
    Rule("model.layers.*.self_attn.q_norm.*", "layers.*.attn.q_norm.*", add=1.0),
    Rule("model.layers.*.self_attn.k_norm.*", "layers.*.attn.k_norm.*", add=1.0),
)

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}


class Gemma3ForCausalLM(DecoderLM):
    weights = WeightMap(GEMMA3_RULES, PREFIXES, IGNORED)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims = read_dims(hf)
        types = hf.get("layer_types") or types_in_turn(dims.layers, hf["sliding_window_pattern"])
        both_ways = bool(hf.get("use_bidirectional_attention"))
        windows = layer_windows(build, hf["sliding_window"] // 2 + 1 if both_ways else hf["sliding_window"], types)
        rotaries = {
            "full_attention": Rotary(build, read_rope(hf, dims.head_dim, "full_attention", theta=1_000_000.0)),
            "sliding_attention": Rotary(build, _local_rope(hf, dims.head_dim)),
        }
        scale = hf["query_pre_attn_scalar"] ** -0.5
        bias = bool(hf.get("attention_bias", False))

        def attention(index: int) -> Attention:
            spec = AttentionSpec(dims.hidden, dims.shape(windows[index], scale), bias, bias)
            norms = HeadNorms(gemma_norm(build, dims.head_dim, dims.eps), gemma_norm(build, dims.head_dim, dims.eps))
            return Attention(build, index, spec, rotaries[types[index]], norms)

        super().__init__(gemma_decoder(hf, build, dims, attention))
        self.sees = Sees.BOTH_WAYS if both_ways else Sees.CAUSAL


def _local_rope(hf: ConfigView, head_dim: int) -> RopeConfig:
    """Windowed layers: plain rotation with a base of their own, whatever the full layers are scaled by."""
    if (hf.get("rope_parameters") or {}).get("sliding_attention"):
        return read_rope(hf, head_dim, "sliding_attention")
    theta, positions = float(hf.get("rope_local_base_freq") or 10_000.0), hf["max_position_embeddings"]
    return RopeConfig("default", theta, head_dim, positions, positions)
