"""Bloom: ALiBi in place of positions, a norm after the embedding, fused queries, keys and values, head by head."""

from __future__ import annotations

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models.decoder import DecoderLM, DecoderParts, PreNormLayer
from cadence.models.dims import split_heads
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.embedding import Embedding, LMHead
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.alibi import alibi_bias
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.weight_map import Rule, WeightMap

BLOOM_WEIGHTS = WeightMap(
    (
        Rule("transformer.word_embeddings.*", "embed.tokens.*"),
        Rule("transformer.word_embeddings_layernorm.*", "embed.norm.*"),
        Rule("transformer.ln_f.*", "norm.*"),
        Rule("lm_head.*", "lm_head.*"),
        Rule("transformer.h.*.self_attention.query_key_value.*", "layers.*.attn.qkv.*"),
        Rule("transformer.h.*.self_attention.dense.*", "layers.*.attn.out.*"),
        Rule("transformer.h.*.mlp.dense_h_to_4h.*", "layers.*.mlp.up.*"),
        Rule("transformer.h.*.mlp.dense_4h_to_h.*", "layers.*.mlp.down.*"),
        Rule("transformer.h.*.input_layernorm.*", "layers.*.attn_norm.*"),
        Rule("transformer.h.*.post_attention_layernorm.*", "layers.*.mlp_norm.*"),
    ),
    (("transformer.", ""),),
)

_DEFAULTS = {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}


class NormedEmbedding(nn.Module):
    def __init__(self, tokens: Embedding, norm: LayerNorm) -> None:
        super().__init__()
        self.tokens, self.norm = tokens, norm

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        return self.norm(self.tokens(inputs, ctx), ctx)


class BloomForCausalLM(DecoderLM):
    weights = BLOOM_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        if hf.get("apply_residual_connection_post_layernorm"):
            name = "apply_residual_connection_post_layernorm"
            raise ConfigError("a Bloom whose stream is normalised is not known", field=name)
        hidden, heads = hf.get("n_embed") or hf["hidden_size"], hf.get("num_attention_heads") or hf["n_head"]
        layers, size = hf.get("num_hidden_layers") or hf["n_layer"], split_heads(hidden, heads)
        shape = AttentionShape(heads, heads, size, size**-0.5, bias=alibi_bias(build, heads))
        spec = AttentionSpec(hidden, shape, qkv_bias=True, out_bias=True, grouped=True)

        def norm() -> LayerNorm:
            return LayerNorm(build, hidden, hf["layer_norm_epsilon"])

        def layer(index: int) -> PreNormLayer:
            attn = Attention(build, index, spec, NoRotary())
            return PreNormLayer(attn, PlainMLP(build, hidden, 4 * hidden, "gelu_new"), norm(), norm())

        tokens = Embedding(build, hf["vocab_size"], hidden)
        super().__init__(
            DecoderParts(
                embed=NormedEmbedding(tokens, norm()),
                layers=build.stage.layers(layers, layer),
                norm=norm(),
                lm_head=LMHead(build, tokens, tied=bool(hf["tie_word_embeddings"])),
            )
        )
