"""Weights of a model that runs, filled again where they lie: from its files, from others, or some by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.core.errors import WeightsError
from cadence.device.regions import spans
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.kernels.interface.overwrite import tensors_of
from cadence.models.heads.mtp import mtp_prefixes
from cadence.models.interface.build import BuildContext
from cadence.models.interface.stage import ALL_LAYERS
from cadence.models.layers.attention import Attention
from cadence.models.layers.derived import derived
from cadence.models.layers.experts import Experts
from cadence.models.layers.weight import KernelWeight
from cadence.models.loader.assign import assign, assign_some, copies_of
from cadence.models.loader.dummy import fill_dummy
from cadence.models.loader.head_weights import NO_WEIGHTS, MoreWeights
from cadence.models.loader.load import ModelWeights, fill, new_packing, open_model_weights, open_weights
from cadence.models.loader.load_head import Head
from cadence.models.loader.model_weights import model_weights
from cadence.models.loader.packing import Packing
from cadence.models.loader.plausible import without_memory
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from cadence.models.loader.selected_weights import SelectedWeights
from cadence.models.loader.sliced_weights import sliced
from cadence.models.loader.slots import slots
from cadence.models.loader.source import WeightsSource
from cadence.models.registry import AnyModel

_LEAST = 1 << 15  # bytes of a tensor that is worth dropping; smaller ones may be tables that packed matrices share


@dataclass(frozen=True, slots=True)
class Filled:
    """A model that runs, and how it was filled."""

    model: AnyModel
    config: ModelConfig  # files and all
    load: LoadConfig
    build: BuildContext  # of this stage


def droppable(model: AnyModel) -> list[torch.Tensor]:
    """Large tensors that a loader fills, and nothing else does."""
    return [tensor for tensor in filled_by_loader(model) if tensor.nbytes >= _LEAST]


def filled_by_loader(model: nn.Module) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for slot in slots(model):
        weight = slot.holders[0].weight.innermost if slot.holders else None
        if isinstance(weight, KernelWeight):
            found += tensors_of(weight.matrix)
        elif not slot.tensor.is_meta:
            found.append(slot.tensor)
    packed = [module.packed for module in model.modules() if isinstance(module, Experts) and module.packed is not None]
    return found + [tensor for experts in packed for tensor in tensors_of(experts.packed)]


class Refill:
    """What a model is to be filled with: its files, and over them what patches have. A patch is a folder with some of
    the tensors, under the names that the files have them by."""

    def __init__(self, filled: Filled, patches: Sequence[Path] = ()) -> None:
        """Raises WeightsError where something does not fit: nothing is read but what files say of their tensors."""
        self._filled = filled
        self._is_dummy = filled.load.load_format == "dummy"
        self._whole = without_memory(filled.config.hf, replace(filled.build, stage=ALL_LAYERS))
        self._base: ModelWeights | None = None
        if not self._is_dummy:
            self._base = open_model_weights(filled.config, filled.load, filled.build)
        self._patches: list[WeightsSource] = []
        for path in patches:
            self.add(path)

    def add(self, path: Path) -> None:
        """One more patch, the newest."""
        build = self._filled.build
        stored = model_weights(SafetensorsWeights(path), self._filled.config.hf, replace(build, stage=ALL_LAYERS))
        patch = sliced(stored, self._whole, _over(self._source, stored))
        if build.whole_experts:  # of which this rank has some
            alone = replace(build, stage=ALL_LAYERS, ranks=ONE_RANK, expert_ranks=ONE_RANK)
            self._check(without_memory(self._filled.config.hf, alone), stored)
        else:
            self._check(self._whole, patch)
        self._patches.append(patch)

    def _check(self, model: AnyModel, patch: WeightsSource) -> None:
        """model: with all that ranks and stages have, in shapes alone"""
        fitting = {copy.name: copy for copy in copies_of(model, _over(self._source, patch))}
        for name in patch.names():
            if name not in fitting and not model.weights.is_ignored(name):
                raise WeightsError(f"{name}: the model has no such weight, or needs others beside it")
            if name in fitting and tuple(patch.shape(name)) != fitting[name].expected_shape():
                found, wanted = list(patch.shape(name)), list(fitting[name].expected_shape())
                raise WeightsError(f"{name}: expected {wanted}, found {found}")

    def write(self) -> bool:
        """All of it -> whether all addresses stayed"""
        filled = self._filled
        before = _facts(filled.model)
        if self._base is not None:
            whole = replace(self._base, source=self._source)
            fill(filled.model, whole, filled.build, self._packing())
        else:
            fill_dummy(filled.model, filled.config.seed, self._packing())
            self._write_some([name for patch in self._patches for name in patch.names()])
        return not filled.model.forget_copies() and _facts(filled.model) == before

    def write_newest(self) -> bool:
        """What the newest patch has -> whether all addresses stayed"""
        before = _facts(self._filled.model)
        self._write_some(self._patches[-1].names())
        return not self._filled.model.forget_copies() and _facts(self._filled.model) == before

    def _write_some(self, names: Sequence[str]) -> None:
        assign_some(self._filled.model, self._source, names, self._packing())
        derived(self._filled.model)

    @property
    def _source(self) -> WeightsSource:
        source: WeightsSource = NO_WEIGHTS if self._base is None else self._base.source
        for patch in self._patches:
            source = _over(source, patch)
        return source

    def _packing(self) -> Packing:
        return new_packing(self._filled.load.quantization, self._filled.build)


def refill_head(head: Head, filled: Filled, patches: Sequence[Path]) -> None:
    """One that drafts, and has its tensors in the target's files, which are these now."""
    if filled.load.load_format == "dummy":
        return
    alone = replace(filled.build, stage=ALL_LAYERS, ranks=ONE_RANK, expert_ranks=ONE_RANK)
    only = mtp_prefixes(filled.config.hf)
    source, where = open_weights(filled.config, filled.load, filled.build.ranks)
    own: WeightsSource = SelectedWeights(source, only=only)
    for path in patches:
        own = _over(own, SelectedWeights(SafetensorsWeights(path), only=only))
    assign(head, own, where, packing=new_packing(filled.load.quantization, alone))
    derived(head)


def _over(base: WeightsSource, patch: WeightsSource) -> WeightsSource:
    return MoreWeights(base, {name: (patch, name) for name in patch.names()})


def _facts(model: AnyModel) -> tuple[object, ...]:
    """What recorded work depends on: where weights lie, and scales that are numbers in it."""
    scales = [module.kv_scales for module in model.modules() if isinstance(module, Attention)]
    return spans(filled_by_loader(model)), scales
