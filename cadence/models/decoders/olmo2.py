"""OLMo 2 and 3: norms after each block instead of before it, and one over all heads of the queries and of the keys.
OLMo 3 has windows in three layers of four, whose rotation is never scaled."""

from __future__ import annotations

from dataclasses import replace

import torch

from cadence.kernels.interface.ops import Triple
from cadence.models.decoder import DecoderLM, DecoderParts, SandwichLayer
from cadence.models.dims import Dims, decoder_parts, layer_windows, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.linear import Linear
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import NoNorm, RMSNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.layers.rank_share import HeadShare
from cadence.models.llama import ATTENTION_RULES, IGNORED, MLP_RULES, OUTER_RULES, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

OLMO2_WEIGHTS = WeightMap(
    (
        *OUTER_RULES,
        *ATTENTION_RULES,
        *MLP_RULES,
        Rule("model.layers.*.self_attn.q_norm.*", "layers.*.attn.q_norm.*"),
        Rule("model.layers.*.self_attn.k_norm.*", "layers.*.attn.k_norm.*"),
        Rule("model.layers.*.post_attention_layernorm.*", "layers.*.attn_post_norm.*"),
        Rule("model.layers.*.post_feedforward_layernorm.*", "layers.*.mlp_post_norm.*"),
    ),
    PREFIXES,
    IGNORED,
)

_THETA3 = 500_000.0
_DEFAULTS = {"rms_norm_eps": 1e-5}


class Olmo2ForCausalLM(DecoderLM):
    weights = OLMO2_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(WithDefaults(hf, _DEFAULTS))
        layout = [(0, Rotary(build, read_rope(hf, dims.head_dim)))] * dims.layers
        super().__init__(_decoder(hf, build, dims, layout))


class Olmo3ForCausalLM(DecoderLM):
    weights = OLMO2_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(WithDefaults(hf, _DEFAULTS))
        rope = read_rope(hf, dims.head_dim, "full_attention", theta=_THETA3)
        plain = replace(rope, kind="default")
        if (hf.get("rope_parameters") or {}).get("sliding_attention"):
            plain = read_rope(hf, dims.head_dim, "sliding_attention", theta=_THETA3)
        rotaries = {"full_attention": Rotary(build, rope), "sliding_attention": Rotary(build, plain)}
        in_turn = ["full_attention" if index % 4 == 3 else "sliding_attention" for index in range(dims.layers)]
        types = hf.get("layer_types") or in_turn
        windows = layer_windows(build, hf.get("sliding_window", 4096), types)
        layout = [(window, rotaries[kind]) for window, kind in zip(windows, types, strict=True)]
        super().__init__(_decoder(hf, build, dims, layout))


def _decoder(hf: ConfigView, build: BuildContext, dims: Dims, layout: list[tuple[int, Rotary]]) -> DecoderParts:
    """layout: window and rotation of each layer"""
    bias = bool(hf.get("attention_bias", False))

    def norm() -> RMSNorm:
        return RMSNorm(build, dims.hidden, dims.eps)

    def layer(index: int) -> SandwichLayer:
        window, rotary = layout[index]
        spec = AttentionSpec(dims.hidden, dims.shape(window), qkv_bias=bias, out_bias=bias)
        return SandwichLayer(
            WholeNormAttention(build, index, spec, rotary, dims.eps),
            GatedMLP(build, dims.hidden, dims.intermediate, dims.activation),
            before=(NoNorm(), NoNorm()),
            after=(norm(), norm()),
        )

    return decoder_parts(build, dims, layer, norm())


class WholeNormAttention(Attention):
    """Queries, and keys, are normalised over all heads at once: each rank projects them all, and goes on with its
    own."""

    def __init__(self, build: BuildContext, layer: int, spec: AttentionSpec, rotary: Rotary, eps: float) -> None:
        super().__init__(build, layer, spec, rotary)
        share, size = HeadShare.of(spec.shape, build.ranks), spec.shape.head_dim
        widths = {"q": spec.shape.num_heads * size, "k": spec.shape.num_kv_heads * size}
        widths["v"] = widths["k"]
        self.qkv = Linear(build, spec.hidden, widths, bias=spec.qkv_bias)
        self.q_norm, self.k_norm = RMSNorm(build, widths["q"], eps), RMSNorm(build, widths["k"], eps)
        self._widths = list(widths.values())
        self._own = [slice(own.start, own.stop) for _, own in (share.queries, share.keys, share.keys)]

    def heads(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Triple:
        q, k, v = projected.view(projected.shape[0], 1, -1).split(self._widths, dim=2)
        q, k = self.q_norm(q, ctx), self.k_norm(k, ctx)
        size = self.shape.head_dim
        q, k, v = (part.view(part.shape[0], -1, size)[:, own] for part, own in zip((q, k, v), self._own, strict=True))
        return q, k, v
