"""A model of which this device has one stage: what others have is taken out. An encoder beside a decoder stays."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from cadence.models.decoder import MixerLayer, PreNormLayer
from cadence.models.encoder import EncoderModel
from cadence.models.encoder_decoder import CrossPreNormLayer, EncoderDecoderLM
from cadence.models.interface.stage import Absent, Stage, even_partition
from cadence.models.layers.embedding import LMHead, NoLogitsBias
from cadence.models.layers.linear import Linear, NoLinear
from cadence.models.layers.weight import WeightHolder
from cadence.models.registry import AnyModel
from cadence.models.stage_ends import FromStage, ToStage

_Model = TypeVar("_Model", bound=AnyModel)

_HEAD_SHARE = 0.75  # measured: SmolLM2 in 4 bits, 32 requests, is fastest with 18 and 12 layers


def as_stage(model: _Model, stage: Stage, dtype: torch.dtype) -> _Model:
    """Of a model whose layers are those of the stage -> itself, without the ends that others have. A head that is the
    embedding's own keeps that. dtype: of activations"""
    if stage.is_all:
        return model
    own, tied = model.own_blocks, _head_is_embedding(model)
    size = model.layers[own.start].attn.width
    if not stage.is_first:
        model.entry = FromStage(stage.links, size, dtype, own.start)
    if not stage.is_last:
        model.norm = ToStage(stage.links, own.stop)
        _end_plain(model.layers[own.stop - 1])
        _take_out_heads(model)
    if not stage.is_first and not (stage.is_last and (tied or stage.keeps_embedding)):
        model.embed = Absent()
    return model


def _head_is_embedding(model: AnyModel) -> bool:
    if isinstance(model, EncoderModel) or not isinstance(model.lm_head, LMHead):
        return False
    return model.lm_head.weight is model.embed.tokens.weight


def _take_out_heads(model: AnyModel) -> None:
    if isinstance(model, EncoderDecoderLM):
        model.logits_bias = NoLogitsBias()
    else:
        model.heads = nn.ModuleDict()
    if not isinstance(model, EncoderModel):
        model.lm_head = Absent()
    for name in [name for name, part in model.named_children() if isinstance(part, Linear)]:
        setattr(model, name, NoLinear())  # after the last norm


def balanced_partition(model: AnyModel, num_stages: int) -> tuple[int, ...]:
    """Of a model with shapes alone -> layers of each stage, such that all take about as long. Time goes with the size
    of matrices; a layer has attention beside them, and prompts need the head for one of their tokens only."""
    head = 0 if isinstance(model, EncoderModel) else _num_entries(model.lm_head)
    layer = _num_entries(model.layers) / len(model.layers)
    return even_partition(len(model.layers), num_stages, _HEAD_SHARE * head / layer)


def _num_entries(part: nn.Module) -> int:
    """Of its matrices."""
    holders = [module for module in part.modules() if isinstance(module, WeightHolder)]
    return sum(holder.weight.rows * holder.weight.cols for holder in holders)


def _end_plain(layer: nn.Module) -> None:
    """No norm comes next that would add terms up."""
    if isinstance(layer, PreNormLayer | MixerLayer | CrossPreNormLayer):
        layer.leaves_terms = False
