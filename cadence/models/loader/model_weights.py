"""Of a checkpoint's tensors, those of the model itself."""

from __future__ import annotations

from cadence.config.hf import HFConfig
from cadence.models.heads.mtp import mtp_prefixes
from cadence.models.interface.build import BuildContext
from cadence.models.loader.assign import copies_of
from cadence.models.loader.planned_weights import PlannedWeights
from cadence.models.loader.plausible import without_memory
from cadence.models.loader.quantized_weights import QuantizedWeights
from cadence.models.loader.selected_weights import SelectedWeights
from cadence.models.loader.source import WeightsSource
from cadence.models.loader.stacked_weights import has_stacks, unstacked


def model_weights(source: WeightsSource, hf: HFConfig, build: BuildContext) -> WeightsSource:
    """Without a head that drafts, and without what is needless; experts one by one, and under the names that the model
    has."""
    if hf.implementation.through_transformers:
        return _planned(source, hf, build)
    own = SelectedWeights(without_needless(source, hf, build), without=mtp_prefixes(hf))
    if not has_stacks(own):
        return own
    return unstacked(own, without_memory(hf, build).weights)


def _planned(source: WeightsSource, hf: HFConfig, build: BuildContext) -> WeightsSource:
    zeros = _zero_biases(source)
    plan = without_memory(hf, build).tensor_plan(source.names(), source.shape)
    if plan is not None:
        source, zeros = PlannedWeights(source, plan), tuple(map(plan.named, zeros))
    return SelectedWeights(_without(zeros, source, hf, build), without=mtp_prefixes(hf))


def without_needless(source: WeightsSource, hf: HFConfig, build: BuildContext) -> WeightsSource:
    """Without zeros that the model has no place for."""
    return _without(_zero_biases(source), source, hf, build)


def _zero_biases(source: WeightsSource) -> tuple[str, ...]:
    return source.zero_biases() if isinstance(source, QuantizedWeights) else ()


def _without(zeros: tuple[str, ...], source: WeightsSource, hf: HFConfig, build: BuildContext) -> WeightsSource:
    if not zeros:
        return source
    taken = {copy.name for copy in copies_of(without_memory(hf, build), source)}
    return SelectedWeights(source, without=tuple(name for name in zeros if name not in taken))
