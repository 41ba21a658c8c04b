"""What of a model can be adapted, under the names that its checkpoints have for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from torch import nn

from cadence.core.errors import ConfigError
from cadence.models.decoder import PostNormLayer
from cadence.models.encoder_decoder import CrossPostNormLayer
from cadence.models.layers.embedding import Embedding, LMHead
from cadence.models.layers.experts import ExpertLinear
from cadence.models.layers.linear import Linear
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.stacked_head import HeadMap
from cadence.models.layers.weight import WeightHolder
from cadence.models.registry import AnyModel
from cadence.models.weight_map import Rule


class TargetKind(Enum):
    LINEAR = "linear"
    EMBEDDING = "embedding"
    HEAD = "lm_head"
    NORM = "norm"  # one with a bias


_ENCODED = ("cross.kv",)  # of a layer: what the encoder's positions reach, in a pass of their own


class Place(Enum):
    """Which tokens reach a module."""

    TOKENS = "tokens"  # all of a forward, or of a pass of the encoder
    WANTED = "wanted"  # after the keys of a block that narrows: those whose hidden states are returned
    LINES = "lines"  # those of logits


@dataclass(frozen=True, slots=True)
class TargetPart:
    """Rows [first, first + rows) of a module's output, which an adapter may change by itself."""

    names: tuple[str, ...]  # of the module in checkpoints, the usual one first: "model.layers.0.self_attn.q_proj"
    first: int
    rows: int
    stored: tuple[int, tuple[range, ...]]  # rows in checkpoints, and those of them that this rank has
    rule: Rule  # how the model's rows differ from those that are stored
    bias_rule: Rule  # and its biases


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One module of the model."""

    path: str  # "layers.0.attn.qkv"
    module: nn.Module
    kind: TargetKind
    place: Place
    parts: tuple[TargetPart, ...]  # in the order of their rows, which are all the module has
    columns: tuple[int, range]  # inputs, and those that this rank has; of an embedding its vectors' entries

    @property
    def cols(self) -> int:
        return len(self.columns[1])

    @property
    def is_sum(self) -> bool:
        """Whether its output is a term of what several ranks have together."""
        return self.cols < self.columns[0]

    @property
    def holder(self) -> WeightHolder:
        assert isinstance(self.module, WeightHolder)
        return self.module


def find_targets(model: AnyModel) -> list[Target]:
    return [target for path, module in model.named_modules() for target in _target(model, path, module)]


def _target(model: AnyModel, path: str, module: nn.Module) -> Iterator[Target]:
    if isinstance(module, ExpertLinear | HeadMap) or path.startswith("heads."):
        return
    if isinstance(module, WeightHolder):
        kind = _kind(module)
        rows = module.weight.rows
        found = [(rule, _bare(names, ".weight")) for rule, names in model.weights.rules_for(f"{path}.weight")]
        parts = _parts(module, found, rows, _bias_rules(model, path))
        yield Target(path, module, kind, _place(model, path, kind), parts, module.held.columns)
    elif isinstance(module, LayerNorm) and module.bias is not None:
        found = [(rule, _bare(names, ".bias")) for rule, names in model.weights.rules_for(f"{path}.bias")]
        parts = _parts(module, found, module.bias.shape[0], _bias_rules(model, path))
        yield Target(path, module, TargetKind.NORM, _place(model, path, TargetKind.NORM), parts, (0, range(0)))


def _kind(module: WeightHolder) -> TargetKind:
    if isinstance(module, Embedding):
        return TargetKind.EMBEDDING
    if isinstance(module, LMHead):
        return TargetKind.HEAD
    if isinstance(module, Linear):
        return TargetKind.LINEAR
    raise ConfigError(f"adapters do not know modules of type {type(module).__name__}", field="enable_lora")


def _bias_rules(model: AnyModel, path: str) -> dict[str, Rule]:
    """By part."""
    return {rule.part: rule for rule, _ in model.weights.rules_for(f"{path}.bias")}


def _parts(
    module: nn.Module, found: list[tuple[Rule, tuple[str, ...]]], rows: int, bias_rules: dict[str, Rule]
) -> tuple[TargetPart, ...]:
    parts = []
    for rule, names in found:
        where = module.part_rows(rule.part) if rule.part and isinstance(module, Linear) else slice(0, rows)
        stored = module.held.stored_rows(rule.part) if isinstance(module, WeightHolder) else (rows, (range(rows),))
        of_bias = bias_rules.get(rule.part, rule)
        parts.append(TargetPart(names, where.start, where.stop - where.start, stored, rule, of_bias))
    return tuple(sorted(parts, key=lambda part: part.first))


def _bare(names: list[str], ending: str) -> tuple[str, ...]:
    return tuple(name.removesuffix(ending) for name in names)


def _place(model: AnyModel, path: str, kind: TargetKind) -> Place:
    if kind is TargetKind.HEAD:
        return Place.LINES
    if model.computes_every_token:
        return Place.TOKENS
    if not path.startswith("layers."):
        return Place.TOKENS if path.startswith(("embed", "encoder")) else Place.WANTED
    _, index, inner = path.split(".", 2)
    layer = model.layers[int(index)]
    before = (*(f"attn.{name}" for name in layer.attn.before_narrowing), *_ENCODED)
    if not isinstance(layer, PostNormLayer | CrossPostNormLayer):
        before = (*before, "attn_norm")
    return Place.WANTED if layer.attn.narrows and inner not in before else Place.TOKENS
