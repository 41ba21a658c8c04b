"""ModernBERT: rotated queries and keys, norms before each block, gated feed-forward, windows in most layers."""

from __future__ import annotations

import torch
from torch import nn

from cadence.config.head_shape import num_labels
from cadence.config.hf import HFConfig
from cadence.core.errors import ConfigError
from cadence.core.pooled.pooling import CLASSIFY
from cadence.kernels.interface.ops import Activation
from cadence.models.decoder import PreNormLayer
from cadence.models.dims import layer_windows
from cadence.models.encoder import EncoderDims, EncoderEmbedding, EncoderModel, EncoderParts
from cadence.models.interface.build import BuildContext, ConfigView, WithDefaults
from cadence.models.interface.model import ForwardContext
from cadence.models.interface.stage import Absent
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.embedding import Embedding, NoTable
from cadence.models.layers.mlp import ExactGeluMLP
from cadence.models.layers.norm import LayerNorm, NoNorm
from cadence.models.layers.positions.rope_config import RopeConfig, read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.layers.stacked_head import HeadMap
from cadence.models.weight_map import Rule, WeightMap

_RULES = (
    Rule("embeddings.tok_embeddings.*", "embed.tokens.*"),
    Rule("embeddings.norm.*", "embed.norm.*"),
    Rule("layers.*.attn_norm.*", "layers.*.attn_norm.*"),
    Rule("layers.*.attn.Wqkv.*", "layers.*.attn.qkv.*"),
    Rule("layers.*.attn.Wo.*", "layers.*.attn.out.*"),
    Rule("layers.*.mlp_norm.*", "layers.*.mlp_norm.*"),
    Rule("layers.*.mlp.Wi.*", "layers.*.mlp.gate_up.*"),
    Rule("layers.*.mlp.Wo.*", "layers.*.mlp.down.*"),
    Rule("final_norm.*", "norm.*"),
)
_HEAD_RULES = (
    Rule("head.dense.*", "heads.classify.dense.*"),
    Rule("head.norm.*", "heads.classify.norm.*"),
    Rule("classifier.*", "heads.classify.out.*"),
)
_PREFIXES = (("", "model."),)
_SCORES = WeightMap((*_RULES, *_HEAD_RULES), _PREFIXES)

_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {_FULL: ("global_rope_theta", 160_000.0), _SLIDING: ("local_rope_theta", 10_000.0)}
_DEFAULTS = {
    "norm_eps": 1e-5,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "layer_types": None,
}


class ModernBertScores(nn.Module):
    """A `PoolHead`: out(norm(gelu(dense(x)))), [n, hidden] -> [n, labels]."""

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__()
        view, hidden = WithDefaults(hf, _DEFAULTS), hf["hidden_size"]
        if view["classifier_activation"] != "gelu":
            found = view["classifier_activation"]
            raise ConfigError(f"activation {found!r} is not gelu", field="classifier_activation")
        self.dense = HeadMap(build, hidden, hidden, bias=view["classifier_bias"])
        self.norm = _norm(view, build)
        self.out = HeadMap(build, hidden, num_labels(hf), bias=True)

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        x = ctx.ops.activate(self.dense(x, ctx), Activation.GELU)
        return self.out(self.norm(x, ctx), ctx)


class ModernBertModel(EncoderModel):
    weights = WeightMap(_RULES, _PREFIXES, ("head.**", "decoder.**"))

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        super().__init__(_parts(hf, build))


class ModernBertForSequenceClassification(EncoderModel):
    weights = _SCORES

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__(_parts(hf, build), {CLASSIFY: ModernBertScores(hf, build)})


class ModernBertForTokenClassification(EncoderModel):
    weights = _SCORES

    def __init__(self, hf: HFConfig, build: BuildContext) -> None:
        super().__init__(_parts(hf, build), {CLASSIFY: ModernBertScores(hf, build)})


def _parts(hf: ConfigView, build: BuildContext) -> EncoderParts:
    hf = WithDefaults(hf, _DEFAULTS)
    if hf["hidden_activation"] != "gelu":
        raise ConfigError(f"activation {hf['hidden_activation']!r} is not gelu", field="hidden_activation")
    dims = EncoderDims(
        vocab=hf["vocab_size"],
        hidden=hf["hidden_size"],
        intermediate=hf["intermediate_size"],
        layers=hf["num_hidden_layers"],
        heads=hf["num_attention_heads"],
        positions=hf["max_position_embeddings"],
        eps=hf["norm_eps"],
        activation=hf["hidden_activation"],
    )
    embed = EncoderEmbedding(
        Embedding(build, dims.vocab, dims.hidden), _norm(hf, build), types=NoTable(), places=NoTable()
    )
    return EncoderParts(embed=embed, layers=_layers(hf, build, dims), norm=_norm(hf, build), vocab_size=dims.vocab)


def _layers(hf: ConfigView, build: BuildContext, dims: EncoderDims) -> list[PreNormLayer | Absent]:
    """The first has no norm before its attention: the embedding was normalised."""
    every = hf["global_attn_every_n_layers"]
    kinds = hf["layer_types"] or [_SLIDING if index % every else _FULL for index in range(dims.layers)]
    windows = layer_windows(build, hf["local_attention"] // 2 + 1, kinds)
    head_dim = dims.shape().head_dim
    rotaries = {kind: Rotary(build, _rope(hf, head_dim, kind)) for kind in sorted(set(kinds))}
    bias = hf["attention_bias"]

    def layer(index: int) -> PreNormLayer:
        spec = AttentionSpec(dims.hidden, dims.shape(windows[index]), qkv_bias=bias, out_bias=bias)
        return PreNormLayer(
            Attention(build, index, spec, rotaries[kinds[index]]),
            ExactGeluMLP(build, dims.hidden, dims.intermediate, bias=hf["mlp_bias"]),
            _norm(hf, build) if index else NoNorm(),
            _norm(hf, build),
        )

    return build.stage.layers(dims.layers, layer)


def _rope(hf: ConfigView, head_dim: int, kind: str) -> RopeConfig:
    """Newer files have a set of settings for each kind of layer, older ones a base."""
    if (hf.get("rope_parameters") or {}).get(kind):
        return read_rope(hf, head_dim, kind)
    name, default = _THETAS[kind]
    positions = hf["max_position_embeddings"]
    return RopeConfig("default", float(hf.get(name) or default), head_dim, positions, positions)


def _norm(hf: ConfigView, build: BuildContext) -> LayerNorm:
    return LayerNorm(build, hf["hidden_size"], hf["norm_eps"], bias=hf["norm_bias"])
