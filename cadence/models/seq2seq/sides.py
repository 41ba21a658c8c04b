"""What BART, Marian and Whisper share: an encoder and a decoder of plain blocks with biases, by the names that their
configurations and checkpoints have for them."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.errors import ConfigError
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models.decoder import PostNormLayer, PreNormLayer
from cadence.models.dims import split_heads
from cadence.models.encoder_decoder import KV_LAYERS, CrossLayer, CrossPostNormLayer, CrossPreNormLayer
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.interface.stage import Absent
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.cross_attention import CrossAttention
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import LayerNorm, NoNorm
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.weight_map import Rule

_EPS = 1e-5


def side_rules(side: str, ours: str, key: str = "k_proj.*") -> tuple[Rule, ...]:
    """Of the layers of a side, encoder or decoder, as checkpoints name it. ours: what our names begin with; key: what a
    checkpoint has of the map that makes keys"""
    layers, own = f"model.{side}.layers.*", f"{ours}layers.*"
    return (
        Rule(f"{layers}.self_attn.q_proj.*", f"{own}.attn.qkv.*", part="q"),
        Rule(f"{layers}.self_attn.{key}", f"{own}.attn.qkv.{key.partition('.')[2]}", part="k"),
        Rule(f"{layers}.self_attn.v_proj.*", f"{own}.attn.qkv.*", part="v"),
        Rule(f"{layers}.self_attn.out_proj.*", f"{own}.attn.out.*"),
        Rule(f"{layers}.self_attn_layer_norm.*", f"{own}.attn_norm.*"),
        Rule(f"{layers}.fc1.*", f"{own}.mlp.up.*"),
        Rule(f"{layers}.fc2.*", f"{own}.mlp.down.*"),
        Rule(f"{layers}.final_layer_norm.*", f"{own}.mlp_norm.*"),
    )


def cross_rules(key: str = "k_proj.*") -> tuple[Rule, ...]:
    """key: as for `side_rules`"""
    attn = "model.decoder.layers.*.encoder_attn"
    return (
        Rule(f"{attn}.q_proj.*", "layers.*.cross.q.*"),
        Rule(f"{attn}.{key}", f"layers.*.cross.kv.{key.partition('.')[2]}", part="k"),
        Rule(f"{attn}.v_proj.*", "layers.*.cross.kv.*", part="v"),
        Rule(f"{attn}.out_proj.*", "layers.*.cross.out.*"),
        Rule(f"{attn}_layer_norm.*", "layers.*.cross_norm.*"),
    )


@dataclass(frozen=True, slots=True)
class SideDims:
    """Sizes of the encoder, or of the decoder."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    activation: str
    pre_norm: bool  # norms come before blocks, and one after the last layer

    @classmethod
    def read(cls, hf: ConfigView, side: str, *, pre_norm: bool) -> SideDims:
        """side: encoder | decoder"""
        return cls(
            hidden=hf["d_model"],
            intermediate=hf[f"{side}_ffn_dim"],
            layers=hf[f"{side}_layers"],
            heads=hf[f"{side}_attention_heads"],
            activation=hf["activation_function"],
            pre_norm=pre_norm,
        )

    def spec(self) -> AttentionSpec:
        dim = split_heads(self.hidden, self.heads)
        shape = AttentionShape(self.heads, self.heads, dim, dim**-0.5)
        return AttentionSpec(self.hidden, shape, qkv_bias=True, out_bias=True)

    def norm(self, build: BuildContext) -> LayerNorm:
        return LayerNorm(build, self.hidden, _EPS)

    def last_norm(self, build: BuildContext) -> LayerNorm | NoNorm:
        return self.norm(build) if self.pre_norm else NoNorm()

    def mlp(self, build: BuildContext) -> PlainMLP:
        return PlainMLP(build, self.hidden, self.intermediate, self.activation)


def encoder_layers(build: BuildContext, dims: SideDims) -> list[PreNormLayer | PostNormLayer]:
    kind = PreNormLayer if dims.pre_norm else PostNormLayer

    def layer(index: int) -> PreNormLayer | PostNormLayer:
        attn = Attention(build, index, dims.spec(), NoRotary())
        return kind(attn, dims.mlp(build), dims.norm(build), dims.norm(build))

    return [layer(index) for index in range(dims.layers)]


def decoder_layers(build: BuildContext, dims: SideDims) -> list[CrossLayer | Absent]:
    kind = CrossPreNormLayer if dims.pre_norm else CrossPostNormLayer

    def layer(index: int) -> CrossLayer:
        attn = Attention(build, KV_LAYERS * index, dims.spec(), NoRotary())
        cross = CrossAttention(build, KV_LAYERS * index + 1, dims.spec())
        return kind(attn, cross, dims.mlp(build), (dims.norm(build), dims.norm(build), dims.norm(build)))

    return build.stage.layers(dims.layers, layer)


def check_positions(build: BuildContext, positions: int) -> None:
    """Of the decoder."""
    if build.max_model_len > positions:
        limit = f"max_model_len {build.max_model_len} is more than the {positions} positions the model has learned"
        raise ConfigError(limit, field="max_model_len")
