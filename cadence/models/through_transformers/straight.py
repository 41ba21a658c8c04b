"""The path through a decoder all of whose layers are recognised: norm, attention, sum, norm, gated block, sum.

It is then run as that of our own families, which add, norm and multiply in one kernel. transformers' code is not called
but for what comes after the last norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cadence.models.decoder import PreNormLayer
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.through_transformers.blocks import CalledAttention, CalledMLP
from cadence.models.through_transformers.embedding import CalledEmbedding
from cadence.models.through_transformers.norm import CalledRMSNorm
from cadence.models.through_transformers.recognise import Recognised, equal
from cadence.models.through_transformers.rehearsal import Call

_IDLE = (nn.Dropout, nn.Identity)  # modules that give what they are given


@dataclass(frozen=True, slots=True)
class FoundLayer:
    """Modules of transformers."""

    attention: nn.Module
    mlp: nn.Module
    attn_norm: nn.Module
    mlp_norm: nn.Module


@dataclass(frozen=True, slots=True)
class FoundPath:
    embedding: nn.Module
    layers: list[FoundLayer]
    norm: nn.Module


class StraightPath:
    """Of modules that stand in the places of those found."""

    def __init__(self, embedding: CalledEmbedding, layers: Sequence[PreNormLayer], norm: CalledRMSNorm) -> None:
        self._embedding = embedding
        self._layers = layers
        self._norm = norm

    def run(self, inputs: ModelInputs, ctx: ForwardContext) -> torch.Tensor:
        """T tokens -> [T, H] after the last norm"""
        x = self._embedding(inputs.ids)
        residual = ctx.ops.zeros_like(x)
        for layer in self._layers:
            x, residual = layer(x, residual, inputs, ctx)
        return self._norm.add(x, residual, ctx)[0]


def find_path(base: nn.Module, recognised: Recognised) -> FoundPath | None:
    heard = recognised.heard
    embeddings = [call for call in heard.calls if isinstance(call.module, nn.Embedding)]
    layers = [_layer_of(each, recognised) for each in recognised.attention]
    if len(embeddings) != 1 or not layers or any(each is None for each in layers):
        return None
    stream = embeddings[0].result
    found = []
    for each in layers:
        assert each is not None
        (whole, layer) = each
        if _given(whole) is not stream:
            return None
        stream = _first(whole.result)
        found.append(layer)
    last = [call for call in heard.calls if call.args and call.args[0] is stream and len(call.inside) == 1]
    whole = heard.of(base)[0]
    if len(last) != 1 or _first(whole.result) is not last[0].result:
        return None
    return FoundPath(embeddings[0].module, found, last[0].module)


def _layer_of(attention: nn.Module, recognised: Recognised) -> tuple[Call, FoundLayer] | None:
    """The layer that it is in, where that is one of ours."""
    heard = recognised.heard
    attn = heard.of(attention)[0]
    if len(attn.inside) < 2:
        return None
    whole = next(call for call in heard.calls if call.module is attn.inside[-1])
    inner = [call for call in heard.within(whole.module) if call.inside[-1] is whole.module]
    inner = [call for call in inner if not isinstance(call.module, _IDLE)]
    if len(inner) != 4 or inner[1] is not attn or inner[3].module not in recognised.mlps:
        return None
    attn_norm, _, mlp_norm, mlp = inner
    x, between = _given(whole), mlp_norm.args[0] if mlp_norm.args else None
    same = attn_norm.args and attn_norm.args[0] is x and _takes(attn, attn_norm.result) and _takes(mlp, mlp_norm.result)
    if not same or between is None or not equal(x + _first(attn.result), between):
        return None
    if not equal(between + _first(mlp.result), _first(whole.result)):
        return None
    return whole, FoundLayer(attention, mlp.module, attn_norm.module, mlp_norm.module)


def _takes(call: Call, x: Any) -> bool:
    return any(value is x for value in (*call.args, *call.kwargs.values()))


def _given(call: Call) -> Any:
    return call.args[0] if call.args else call.kwargs.get("hidden_states")


def _first(result: Any) -> Any:
    return result if isinstance(result, torch.Tensor) else result[0]


def built(found: FoundPath, ours: dict[nn.Module, nn.Module]) -> StraightPath | None:
    """ours: by the modules that they stand in for"""
    embedding, norm = ours.get(found.embedding), ours.get(found.norm)
    if not isinstance(embedding, CalledEmbedding) or not isinstance(norm, CalledRMSNorm):
        return None
    layers = []
    for each in found.layers:
        attn, mlp = ours.get(each.attention), ours.get(each.mlp)
        norms = [ours.get(module) for module in (each.attn_norm, each.mlp_norm)]
        first, second = norms
        if not isinstance(first, CalledRMSNorm) or not isinstance(second, CalledRMSNorm):
            return None
        assert isinstance(attn, CalledAttention) and isinstance(mlp, CalledMLP)
        layers.append(PreNormLayer(attn.block, mlp.block, first, second, terms=True))
    return StraightPath(embedding, layers, norm)
