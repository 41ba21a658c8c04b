"""MPT: ALiBi in place of positions, no biases anywhere, queries, keys and values maybe clipped."""

from __future__ import annotations

import torch

from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.ops import Triple
from cadence.models.decoder import DecoderLM, PreNormLayer
from cadence.models.dims import Dims, decoder_parts, split_heads
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.alibi import alibi_bias
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.weight_map import Rule, WeightMap

MPT_WEIGHTS = WeightMap(
    (
        Rule("transformer.wte.*", "embed.*"),
        Rule("transformer.norm_f.*", "norm.*"),
        Rule("lm_head.*", "lm_head.*"),
        Rule("transformer.blocks.*.attn.Wqkv.*", "layers.*.attn.qkv.*"),
        Rule("transformer.blocks.*.attn.out_proj.*", "layers.*.attn.out.*"),
        Rule("transformer.blocks.*.ffn.up_proj.*", "layers.*.mlp.up.*"),
        Rule("transformer.blocks.*.ffn.down_proj.*", "layers.*.mlp.down.*"),
        Rule("transformer.blocks.*.norm_1.*", "layers.*.attn_norm.*"),
        Rule("transformer.blocks.*.norm_2.*", "layers.*.mlp_norm.*"),
    ),
    (("transformer.", ""),),
)

_DEFAULTS = {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "attn_config": {}}
_ATTENTION = {"alibi_bias_max": 8, "clip_qkv": None, "softmax_scale": None}


class MptForCausalLM(DecoderLM):
    weights = MPT_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        dims, own = _dims(hf), WithDefaults(hf["attn_config"] or {}, _ATTENTION)
        bias, scale = alibi_bias(build, dims.heads, own["alibi_bias_max"]), own["softmax_scale"] or dims.head_dim**-0.5
        shape = AttentionShape(dims.heads, dims.heads, dims.head_dim, scale, bias=bias)
        spec, clip = AttentionSpec(dims.hidden, shape), own["clip_qkv"] or 0.0

        def norm() -> LayerNorm:
            return LayerNorm(build, dims.hidden, dims.eps, bias=False)

        def layer(index: int) -> PreNormLayer:
            mlp = PlainMLP(build, dims.hidden, dims.intermediate, dims.activation, bias=False)
            return PreNormLayer(ClippedAttention(build, index, spec, clip), mlp, norm(), norm())

        super().__init__(decoder_parts(build, dims, layer, norm()))


class ClippedAttention(Attention):
    """Queries, keys and values lie within [-clip, clip]; 0 = anywhere."""

    def __init__(self, build: BuildContext, layer: int, spec: AttentionSpec, clip: float) -> None:
        super().__init__(build, layer, spec, NoRotary())
        self._clip = clip

    def heads(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Triple:
        return super().heads(ctx.ops.clip(projected, self._clip) if self._clip else projected, inputs, ctx)


def _dims(hf: ConfigView) -> Dims:
    hidden, heads = hf["d_model"], hf["n_heads"]
    return Dims(
        vocab=hf["vocab_size"],
        hidden=hidden,
        intermediate=4 * hidden,
        layers=hf["n_layers"],
        heads=heads,
        kv_heads=heads,
        head_dim=split_heads(hidden, heads),
        eps=hf["layer_norm_epsilon"],
        activation="gelu",
        tied=bool(hf["tie_word_embeddings"]),
    )
