"""BERT: learned positions, two kinds of text in a prompt, norms after each block."""

from __future__ import annotations

from cadence.config.head_shape import hidden_size, num_labels
from cadence.config.hf import HFConfig
from cadence.core.errors import ConfigError
from cadence.core.pooled.pooling import CLASSIFY
from cadence.kernels.interface.attention_batch import NO_BIAS, DistanceBias
from cadence.models.decoder import PostNormLayer
from cadence.models.encoder import EncoderDims, EncoderEmbedding, EncoderModel, EncoderParts, learned_positions
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.embedding import Embedding, NoTable, PositionTable
from cadence.models.layers.mlp import PlainMLP
from cadence.models.layers.norm import NoNorm
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.layers.stacked_head import MapShape, StackedHead
from cadence.models.weight_map import Rule, WeightMap

EMBEDDING_RULES = (
    Rule("embeddings.word_embeddings.*", "embed.tokens.*"),
    Rule("embeddings.token_type_embeddings.*", "embed.types.*"),
    Rule("embeddings.position_embeddings.*", "embed.places.*"),
    Rule("embeddings.LayerNorm.*", "embed.norm.*"),
)

BLOCK_RULES = (
    Rule("encoder.layer.*.intermediate.dense.*", "layers.*.mlp.up.*"),
    Rule("encoder.layer.*.output.dense.*", "layers.*.mlp.down.*"),
    Rule("encoder.layer.*.output.LayerNorm.*", "layers.*.mlp_norm.*"),
)

BERT_RULES = (
    *EMBEDDING_RULES,
    *BLOCK_RULES,
    Rule("encoder.layer.*.attention.self.query.*", "layers.*.attn.qkv.*", part="q"),
    Rule("encoder.layer.*.attention.self.key.*", "layers.*.attn.qkv.*", part="k"),
    Rule("encoder.layer.*.attention.self.value.*", "layers.*.attn.qkv.*", part="v"),
    Rule("encoder.layer.*.attention.output.dense.*", "layers.*.attn.out.*"),
    Rule("encoder.layer.*.attention.output.LayerNorm.*", "layers.*.attn_norm.*"),
)

TOKEN_RULES = (Rule("classifier.*", "heads.classify.maps.0.*"),)
IGNORED = ("**embeddings.position_ids", "**embeddings.token_type_ids")  # what old checkpoints carry
POOLER = "**pooler.**"  # where it is no part of a head
FILLS_WORDS = ("cls.**", "lm_head.**")  # the head that a model was trained with
_PREFIXES = (("", "bert."),)
_OLDER = ((".LayerNorm.weight", ".LayerNorm.gamma"), (".LayerNorm.bias", ".LayerNorm.beta"))  # of the first checkpoints

_DEFAULTS = {
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
}


def text_rules(dense: str, out: str) -> tuple[Rule, ...]:
    """By what a checkpoint calls the two maps of `text_scores`."""
    return Rule(f"{dense}.*", "heads.classify.maps.0.*"), Rule(f"{out}.*", "heads.classify.maps.1.*")


class BertModel(EncoderModel):
    weights = WeightMap(BERT_RULES, _PREFIXES, (*IGNORED, POOLER, *FILLS_WORDS), _OLDER)

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(bert_parts(hf, build))


class BertForSequenceClassification(EncoderModel):
    weights = WeightMap((*BERT_RULES, *text_rules("pooler.dense", "classifier")), _PREFIXES, IGNORED, _OLDER)

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__(bert_parts(hf, build), {CLASSIFY: text_scores(hf, build)})


class BertForTokenClassification(EncoderModel):
    weights = WeightMap((*BERT_RULES, *TOKEN_RULES), _PREFIXES, (*IGNORED, POOLER), _OLDER)

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__(bert_parts(hf, build), {CLASSIFY: token_scores(hf, build)})


def text_scores(hf: HFConfig, build: BuildContext, activation: str = "tanh") -> StackedHead:
    """Of a text's vector, which goes through a map of its own first."""
    size = hidden_size(hf)
    return StackedHead(build, [MapShape(size, size, True, activation), MapShape(size, num_labels(hf), True)])


def token_scores(hf: HFConfig, build: BuildContext) -> StackedHead:
    return StackedHead(build, [MapShape(hidden_size(hf), num_labels(hf), True)])


def bert_parts(hf: ConfigView, build: BuildContext, offset: int = 0, bias: DistanceBias = NO_BIAS) -> EncoderParts:
    """offset: rows of the table of positions that come first unused. bias: of every layer"""
    hf = WithDefaults(hf, _DEFAULTS)
    if hf["position_embedding_type"] != "absolute" or hf["is_decoder"]:
        found = f"position_embedding_type={hf['position_embedding_type']!r}, is_decoder={hf['is_decoder']}"
        raise ConfigError(f"positions must be absolute, and the model no decoder; found {found}", "is_decoder")
    dims = EncoderDims(
        vocab=hf["vocab_size"],
        hidden=hf["hidden_size"],
        intermediate=hf["intermediate_size"],
        layers=hf["num_hidden_layers"],
        heads=hf["num_attention_heads"],
        positions=hf["max_position_embeddings"] - offset,
        eps=hf["layer_norm_eps"],
        activation=hf["hidden_act"],
    )
    types = PositionTable(build, hf["type_vocab_size"], dims.hidden, 0) if hf["type_vocab_size"] else NoTable()
    return post_norm_parts(build, dims, types, offset, bias)


def post_norm_parts(
    build: BuildContext,
    dims: EncoderDims,
    types: PositionTable | NoTable,
    offset: int = 0,
    bias: DistanceBias = NO_BIAS,
) -> EncoderParts:
    spec = AttentionSpec(dims.hidden, dims.shape(bias=bias), qkv_bias=True, out_bias=True)

    def layer(index: int) -> PostNormLayer:
        return PostNormLayer(
            Attention(build, index, spec, NoRotary()),
            PlainMLP(build, dims.hidden, dims.intermediate, dims.activation),
            dims.norm(build),
            dims.norm(build),
        )

    tokens, places = Embedding(build, dims.vocab, dims.hidden), learned_positions(build, dims, offset)
    return EncoderParts(
        embed=EncoderEmbedding(tokens, dims.norm(build), types=types, places=places),
        layers=build.stage.layers(dims.layers, layer),
        norm=NoNorm(),
        vocab_size=dims.vocab,
    )
