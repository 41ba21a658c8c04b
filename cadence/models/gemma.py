"""What generations of Gemma share: scaled embeddings, norms by 1 + w on both sides of every block, a capped head."""

from __future__ import annotations

from collections.abc import Callable

from cadence.models.decoder import DecoderParts, SandwichLayer
from cadence.models.dims import Dims, Scales, decoder_parts
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.attention import Attention
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import RMSNorm
from cadence.models.llama import ATTENTION_RULES, MLP_RULES
from cadence.models.weight_map import Rule

GEMMA_RULES = (
    Rule("model.embed_tokens.*", "embed.*"),
    Rule("model.norm.*", "norm.*", add=1.0),
    Rule("lm_head.*", "lm_head.*"),
    *ATTENTION_RULES,
    *MLP_RULES,
    Rule("model.layers.*.input_layernorm.*", "layers.*.attn_norm.*", add=1.0),
    Rule("model.layers.*.post_attention_layernorm.*", "layers.*.attn_post_norm.*", add=1.0),
    Rule("model.layers.*.pre_feedforward_layernorm.*", "layers.*.mlp_norm.*", add=1.0),
    Rule("model.layers.*.post_feedforward_layernorm.*", "layers.*.mlp_post_norm.*", add=1.0),
)


def gemma_norm(build: BuildContext, size: int, eps: float) -> RMSNorm:
    """Its weight is 1 + w in float32."""
    return RMSNorm(build, size, eps, wide=True)


def gemma_decoder(
    hf: ConfigView, build: BuildContext, dims: Dims, attention: Callable[[int], Attention]
) -> DecoderParts:
    def norm() -> RMSNorm:
        return gemma_norm(build, dims.hidden, dims.eps)

    def layer(index: int) -> SandwichLayer:
        return SandwichLayer(
            attention(index),
            GatedMLP(build, dims.hidden, dims.intermediate, dims.activation),
            before=(norm(), norm()),
            after=(norm(), norm()),
        )

    softcap = hf.get("final_logit_softcapping") or 0.0
    scales = Scales(embed=dims.hidden**0.5, softcap=softcap)
    return decoder_parts(build, dims, layer, norm(), scales=scales)
