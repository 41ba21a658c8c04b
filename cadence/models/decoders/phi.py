"""Phi-1, 1.5 and 2: attention and feed-forward side by side after one norm, and a bias on the logits."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM, ParallelLayer
from cadence.models.dims import decoder_parts, read_dims
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import IGNORED, PREFIXES
from cadence.models.weight_map import Rule, WeightMap

PHI_WEIGHTS = WeightMap(
    (
        Rule("model.embed_tokens.*", "embed.*"),
        Rule("model.final_layernorm.*", "norm.*"),
        Rule("lm_head.weight", "lm_head.weight"),
        Rule("lm_head.bias", "lm_head.added.weight"),
        Rule("model.layers.*.self_attn.q_proj.*", "layers.*.attn.qkv.*", part="q"),
        Rule("model.layers.*.self_attn.k_proj.*", "layers.*.attn.qkv.*", part="k"),
        Rule("model.layers.*.self_attn.v_proj.*", "layers.*.attn.qkv.*", part="v"),
        Rule("model.layers.*.self_attn.dense.*", "layers.*.attn.out.*"),
        Rule("model.layers.*.mlp.fc1.*", "layers.*.mlp.up.*"),
        Rule("model.layers.*.mlp.fc2.*", "layers.*.mlp.down.*"),
        Rule("model.layers.*.input_layernorm.*", "layers.*.attn_norm.*"),
    ),
    PREFIXES,
    IGNORED,
)

_DEFAULTS = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5}


class PhiForCausalLM(DecoderLM):
    weights = PHI_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        hf = WithDefaults(hf, _DEFAULTS)
        if hf.get("qk_layernorm"):
            raise ConfigError("a Phi with norms of queries and keys is not known", field="qk_layernorm")
        dims = read_dims(hf, "layer_norm_eps")
        rotary = Rotary(build, read_rope(hf, dims.head_dim))
        spec = AttentionSpec(dims.hidden, dims.shape(), qkv_bias=True, out_bias=True)

        def norm() -> LayerNorm:
            return LayerNorm(build, dims.hidden, dims.eps)

        def layer(index: int) -> ParallelLayer:
            mlp = PlainMLP(build, dims.hidden, dims.intermediate, dims.activation)
            return ParallelLayer(Attention(build, index, spec, rotary), mlp, norm())

        super().__init__(decoder_parts(build, dims, layer, norm(), head_bias=True))
