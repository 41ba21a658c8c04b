"""OPT: learned positions stored two rows down, ReLU, norms before the blocks (after them in the 350M model)."""

from __future__ import annotations

import torch

from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models.decoder import DecoderLM, DecoderParts, PostNormLayer, PreNormLayer
from cadence.models.dims import split_heads
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.embedding import Embedding, LearnedPositions, LMHead
from cadence.models.layers.linear import Linear, NoLinear
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm, NoNorm
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.weight_map import Rule, WeightMap

_POSITION_OFFSET = 2
_EPS = 1e-5

OPT_WEIGHTS = WeightMap(
    (
        Rule("model.decoder.embed_tokens.*", "embed.tokens.*"),
        Rule("model.decoder.embed_positions.*", "embed.places.*"),
        Rule("model.decoder.project_in.*", "embed.project.*"),
        Rule("model.decoder.layers.*.self_attn_layer_norm.*", "layers.*.attn_norm.*"),
        Rule("model.decoder.layers.*.self_attn.q_proj.*", "layers.*.attn.qkv.*", part="q"),
        Rule("model.decoder.layers.*.self_attn.k_proj.*", "layers.*.attn.qkv.*", part="k"),
        Rule("model.decoder.layers.*.self_attn.v_proj.*", "layers.*.attn.qkv.*", part="v"),
        Rule("model.decoder.layers.*.self_attn.out_proj.*", "layers.*.attn.out.*"),
        Rule("model.decoder.layers.*.final_layer_norm.*", "layers.*.mlp_norm.*"),
        Rule("model.decoder.layers.*.fc1.*", "layers.*.mlp.up.*"),
        Rule("model.decoder.layers.*.fc2.*", "layers.*.mlp.down.*"),
        Rule("model.decoder.final_layer_norm.*", "norm.*"),
        Rule("model.decoder.project_out.*", "project_out.*"),
        Rule("lm_head.*", "lm_head.*"),
    ),
    (("model.decoder.", "decoder."), ("model.decoder.", "")),
)

_DEFAULTS = {
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "word_embed_proj_dim": None,
    "activation_function": "relu",
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
}


class OPTForCausalLM(DecoderLM):
    weights = OPT_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        hidden = hf["hidden_size"]
        word_size = hf["word_embed_proj_dim"] or hidden
        projected = word_size != hidden
        tokens = Embedding(build, hf["vocab_size"], word_size)
        project_in = Linear(build, word_size, hidden) if projected else NoLinear()
        embed = LearnedPositions(
            build, tokens, project_in, hf["max_position_embeddings"], hidden, offset=_POSITION_OFFSET
        )
        normed = hf["do_layer_norm_before"] and not hf["_remove_final_layer_norm"]
        super().__init__(
            DecoderParts(
                embed=embed,
                layers=build.stage.layers(hf["num_hidden_layers"], lambda index: _layer(hf, build, index)),
                norm=_norm(hf, build) if normed else NoNorm(),
                lm_head=LMHead(build, tokens, tied=hf["tie_word_embeddings"]),
            )
        )
        self.project_out = Linear(build, hidden, word_size) if projected else NoLinear()

    def forward(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        return self.project_out(super().forward(inputs, ctx), ctx)


def _norm(hf: ConfigView, build: BuildContext) -> LayerNorm:
    return LayerNorm(build, hf["hidden_size"], _EPS, affine=hf["layer_norm_elementwise_affine"])


def _layer(hf: ConfigView, build: BuildContext, index: int) -> PreNormLayer | PostNormLayer:
    hidden, heads, bias = hf["hidden_size"], hf["num_attention_heads"], hf["enable_bias"]
    head_dim = split_heads(hidden, heads)
    shape = AttentionShape(heads, heads, head_dim, head_dim**-0.5)
    kind = PreNormLayer if hf["do_layer_norm_before"] else PostNormLayer
    return kind(
        Attention(build, index, AttentionSpec(hidden, shape, qkv_bias=bias, out_bias=bias), NoRotary()),
        PlainMLP(build, hidden, hf["ffn_dim"], hf["activation_function"], bias=bias),
        _norm(hf, build),
        _norm(hf, build),
    )
