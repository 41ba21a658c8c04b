"""A text through a model in plain torch, with one layer of it in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cadence.config.hf import HFConfig
from cadence.core.model.kv_spec import LayerKV
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.links import OneStage
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, LayerCache, ModelInputs
from cadence.models.interface.stage import Stage
from cadence.models.layers.experts import DenseExperts, Expert, ExpertLinear, Experts
from cadence.models.layers.linear import Linear
from cadence.models.layers.weight import Stream
from cadence.models.loader.assign import Copy, assign, copies_of
from cadence.models.loader.plausible import build_model
from cadence.models.loader.selected_weights import SelectedWeights
from cadence.models.loader.sliced_weights import sliced
from cadence.models.loader.source import WeightsSource
from cadence.models.quantize.observed import ObservedExperts, ObservedWeight
from cadence.models.stage import as_stage

Hessians = dict[int, torch.Tensor]  # [cols, cols] float32, by the id of the module whose inputs they are of


class _OnePlace(OneStage):
    """The place of a stage that hands nothing on by itself."""

    def __init__(self, stage: int, count: int) -> None:
        self.stage, self.count, self.is_last = stage, count, stage == count - 1


@dataclass(frozen=True, slots=True)
class OpenLayer:
    """A layer with its weights."""

    index: int
    model: DecoderLM  # of which the other layers are absent
    copies: list[Copy]  # what was read for it, and where it lies


class LayerPass:
    def __init__(self, hf: HFConfig, source: WeightsSource, where: str, windows: torch.Tensor) -> None:
        """windows [n, length] int32: token ids of texts that each stand for themselves; where: for messages"""
        self._hf = hf
        self._source = source
        self._where = where
        self._windows = windows
        length = windows.shape[1]
        self._build = BuildContext(torch.float32, torch.device("cpu"), ReferenceOps(), length)
        meta = build_model(hf, replace(self._build, device=torch.device("meta")))
        self.num_layers = len(meta.layers)
        self._layouts = meta.kv_layers()
        self._batch = _one_sequence(length)
        self._stream: list[Stream] = []  # of each window, as it enters the next layer

    def open(self, index: int) -> OpenLayer:
        """Layers are opened in order, and each is left by `advance`."""
        stage = Stage(_OnePlace(index, self.num_layers), (1,) * self.num_layers)
        model = as_stage(build_model(self._hf, replace(self._build, stage=stage)), stage, torch.float32)
        copies = copies_of(model, self._source)
        own = SelectedWeights.named(self._source, {copy.name for copy in copies})
        assign(model, sliced(own, model), self._where)
        layer = OpenLayer(index, model, copies)
        if index == 0:
            self._stream = [model.entry.enter(self._inputs(ids), self._context(layer)) for ids in self._windows]
        return layer

    def observe(self, layer: OpenLayer) -> Hessians:
        """Of every Linear of the layer that has met a token: of experts, some may not."""
        modules = list(layer.model.layers[layer.index].modules())
        linears = [module for module in modules if isinstance(module, Linear) and not isinstance(module, ExpertLinear)]
        experts = [module for module in modules if isinstance(module, Experts)]
        plain = [module.weight for module in linears]
        observed = [ObservedWeight(weight) for weight in plain]
        for module, weight in zip(linears, observed, strict=True):
            module.use(weight)
        watched = [_watched(module) for module in experts]
        for index in range(len(self._stream)):
            self._through(layer, index)
        for module, weight in zip(linears, plain, strict=True):
            module.use(weight)
        found = {id(module): weight.hessian for module, weight in zip(linears, observed, strict=True)}
        for layer_experts, seen in zip(experts, watched, strict=True):
            layer_experts.use(seen.inner)
            for index, hessians in seen.hessians.items():
                expert = layer_experts.experts[index]
                assert isinstance(expert, Expert)
                found |= {id(expert.gate_up): hessians[0], id(expert.down): hessians[1]}
        return found

    def advance(self, layer: OpenLayer) -> None:
        """The stream after the layer with the weights that it has now."""
        for index in range(len(self._stream)):
            self._stream[index] = self._through(layer, index)

    @torch.inference_mode()
    def _through(self, layer: OpenLayer, index: int) -> Stream:
        x, residual = self._stream[index]
        return layer.model.layers[layer.index](
            x.clone(), residual.clone(), self._inputs(self._windows[index]), self._context(layer)
        )

    def _inputs(self, ids: torch.Tensor) -> ModelInputs:
        return ModelInputs(ids, torch.arange(len(ids)))

    def _context(self, layer: OpenLayer) -> ForwardContext:
        """Layers are alone in the cache, which each window fills anew."""
        cache = _cache(self._layouts[layer.index], self._windows.shape[1])
        return ForwardContext(ReferenceOps(), self._batch, [cache] * self.num_layers)


def _watched(experts: Experts) -> ObservedExperts:
    """Which it uses from now on."""
    assert isinstance(experts.product, DenseExperts)
    found = ObservedExperts(experts.product)
    experts.use(found)
    return found


def _one_sequence(length: int) -> AttentionBatch:
    """All of its tokens at once, in one block of the cache."""
    return AttentionBatch(
        rows=torch.zeros(1, dtype=torch.int32),
        query_start=torch.tensor([0, length], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_tables=(torch.zeros((1, 1), dtype=torch.int32),),
        slots=(torch.arange(length),),
        num_single=0,
        max_query_len=length,
    )


def _cache(layout: LayerKV, length: int) -> LayerCache:
    shape = (2, 1, layout.num_kv_heads, length, layout.head_dim)
    kv = torch.zeros(shape)
    return LayerCache(0, kv[0], kv[1])
