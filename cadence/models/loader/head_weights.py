"""Tensors of heads that lie outside a model's own files, or are made of what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from cadence.config.head_shape import TWO_WAY, made_from
from cadence.config.hf import HFConfig
from cadence.config.reference import ModelFiles
from cadence.core.errors import WeightsError
from cadence.core.model.model_heads import ModelHead
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.headed import dense_name
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from cadence.models.loader.source import KVScales, PlainSource, WeightsSource
from cadence.models.loader.torch_weights import TorchWeights, saved_files
from cadence.models.registry import model_class

_SCORE = "score.weight"


def with_head_weights(source: WeightsSource, files: ModelFiles, hf: HFConfig) -> WeightsSource:
    """With those of Dense modules, and with scores that are made of the logits of tokens."""
    more: dict[str, tuple[WeightsSource, str]] = {}
    for index, module in enumerate(hf.sentence.dense):
        held = _open(files.directory / module.folder)
        for name in held.names():
            more[f"{dense_name(index)}.{name.removeprefix('linear.')}"] = (held, name)
    if hf.head is ModelHead.SCORES and hf.get("classifier_token_ids"):
        more[_SCORE] = (TokenScores(source, hf), _SCORE)
    return MoreWeights(source, more) if more else source


def _open(folder: Path) -> WeightsSource:
    saved = saved_files(folder)
    return TorchWeights(saved) if saved else SafetensorsWeights(folder)


class TokenScores(PlainSource):
    """A `WeightsSource` of one matrix: of two tokens the difference of their logits, second less first, or a score for
    each token."""

    def __init__(self, source: WeightsSource, hf: HFConfig) -> None:
        self._source = source
        self._ids: list[int] = hf["classifier_token_ids"]
        self._two_way = made_from(hf) == TWO_WAY
        self._matrix = _logits_name(source, hf)
        rows, self._size = source.shape(self._matrix)
        if max(self._ids) >= rows:
            raise WeightsError(
                f"classifier_from_token: token {max(self._ids)} has no row among {rows} of {self._matrix}"
            )

    def names(self) -> Sequence[str]:
        return [_SCORE]

    def shape(self, name: str) -> tuple[int, ...]:
        return (1 if self._two_way else len(self._ids), self._size)

    def load(self, name: str) -> torch.Tensor:
        rows = self._source.load(self._matrix)[self._ids].float()
        return rows[1:] - rows[:1] if self._two_way else rows

    def release(self, name: str) -> None:
        self._source.release(self._matrix)


def _logits_name(source: WeightsSource, hf: HFConfig) -> str:
    """Of the matrix whose rows make logits, which may be that of the embedding."""
    weights, held = model_class(hf.family).weights, set(source.names())
    for parameter in ("lm_head.weight", "embed.weight", "embed.tokens.weight"):
        for _, names in weights.rules_for(parameter):
            if found := next((name for name in names if name in held), None):
                return found
    raise WeightsError(f"{hf.source}: classifier_from_token needs a head for tokens, and the weights have none")


class NoWeights(PlainSource):
    """A `WeightsSource` of nothing."""

    def names(self) -> Sequence[str]:
        return ()

    def shape(self, name: str) -> tuple[int, ...]:
        raise KeyError(name)

    def load(self, name: str) -> torch.Tensor:
        raise KeyError(name)

    def release(self, name: str) -> None:
        raise KeyError(name)


NO_WEIGHTS = NoWeights()


class MoreWeights:
    """A `WeightsSource` with some tensors of others."""

    def __init__(self, source: WeightsSource, more: Mapping[str, tuple[WeightsSource, str]]) -> None:
        """more: by name here, where a tensor is and its name there"""
        self._source = source
        self._more = more

    def names(self) -> Sequence[str]:
        return [*(name for name in self._source.names() if name not in self._more), *self._more]

    def _place(self, name: str) -> tuple[WeightsSource, str]:
        return self._more.get(name, (self._source, name))

    def shape(self, name: str) -> tuple[int, ...]:
        source, there = self._place(name)
        return source.shape(there)

    def load(self, name: str) -> torch.Tensor:
        source, there = self._place(name)
        return source.load(there)

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        source, there = self._place(name)
        return source.blocks(there, transposed)

    def numbers(self, name: str) -> ScaledNumbers | None:
        source, there = self._place(name)
        return source.numbers(there)

    def order(self, name: str) -> torch.Tensor | None:
        source, there = self._place(name)
        return source.order(there)

    def kv_scales(self) -> KVScales:
        return self._source.kv_scales()

    def release(self, name: str) -> None:
        source, there = self._place(name)
        source.release(there)
