"""Puts the runner together: which tables, which hooks, which sampler. The only place that names features."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch

from cadence.config.speculative import NO_SPECULATION
from cadence.core.adapter import ADAPTERS
from cadence.core.contract.media_work import PAGE
from cadence.core.inputs.alignment import ALIGNMENT
from cadence.core.inputs.encoder_input import ENCODER
from cadence.core.inputs.media import MEDIA
from cadence.core.model.kv_spec import KVLayout, LayerKV
from cadence.core.model.state_spec import STATES
from cadence.device.base import Device
from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.kernels.interface.links import ONE_STAGE, StageLinks
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import DraftState, KeptStates, RowState
from cadence.lora.store import AdapterStore
from cadence.models.decoder import DecoderLM
from cadence.models.encoder_decoder import EncoderDecoderLM
from cadence.models.interface.media import MediaTower
from cadence.models.interface.model import CausalLM
from cadence.runner.after_sample import AfterSample, NothingAfter
from cadence.runner.caches.states import StateSizes
from cadence.runner.drivers.choose import driver_of
from cadence.runner.feature import DeviceFeature, InputHook
from cadence.runner.features.adapters.rows import AdapterRows, DeviceAdapters
from cadence.runner.features.alignment.rows import AlignedRows, DeviceAlignment
from cadence.runner.features.drafts.drafted_states import DraftedStates, NoDraftedStates
from cadence.runner.features.drafts.looked_up import LookedUpDrafts
from cadence.runner.features.drafts.model_drafts import ModelDrafts, ModelDraftsParts, most_drafted_tokens
from cadence.runner.features.drafts.rows import DeviceDrafts, DraftedRows, DraftRows
from cadence.runner.features.drafts.waiting_positions import ROOM, KeptStateRows, NoWaitingPositions, WaitingPositions
from cadence.runner.features.encoder.encode import ContentReader, DeviceEncoder
from cadence.runner.features.encoder.rows import EncoderRows
from cadence.runner.features.grammar.rows import DeviceGrammar
from cadence.runner.features.media.encode import DeviceMedia, DraftedMedia
from cadence.runner.features.media.rope import ROPE, DeviceRope, RopeTable, RopeTurns
from cadence.runner.features.media.vectors import TowerVectors
from cadence.runner.features.pooling.pairs import PairRows
from cadence.runner.features.pooling.rows import DevicePooling, PooledRows
from cadence.runner.features.states.drafter import DrafterStates
from cadence.runner.features.states.feature import DeviceStates
from cadence.runner.features.states.rows import StateRows
from cadence.runner.forward_pass import ForwardParts, ForwardPass
from cadence.runner.graphs import StepGraphs
from cadence.runner.limits import RunnerLimits
from cadence.runner.loop import ForwardLoop
from cadence.runner.runner import RunnerParts
from cadence.runner.shapes import ExactShapes, HookedInputs, PaddedShapes, Shapes, StepShape
from cadence.runner.stages.earlier_stages import EarlierStages
from cadence.runner.stages.stage_loop import StageLoop
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.runner.step_loop import Listeners, NullListeners, StepLoop
from cadence.sample.pipeline import SamplePipeline
from cadence.sample.prompt_logprobs import PromptLogprobsTable
from cadence.sample.shared_draws import sharing
from cadence.speculate.choose import ProposerFactory, distributions_of, proposer_of, sampler_of
from cadence.speculate.draft_model import NO_DRAFT_MODEL, AnyDraftModel, DraftModel

_NEVER_RECORDED = (ALIGNMENT, MEDIA)  # input hooks that leave more behind, or take more, than a recording does


@dataclass(frozen=True, slots=True)
class LoadedModels:
    target: CausalLM
    draft: AnyDraftModel = NO_DRAFT_MODEL
    adapters: AdapterStore | None = None  # of the target; None = its requests have none
    links: StageLinks = ONE_STAGE  # to the other stages of the target
    aux_layers: Sequence[int] = ()  # of the target, whose streams the proposer of the last stage begins with
    ranks: Collectives = ONE_RANK  # that share the target's layers
    states: StateSizes | None = None  # of the target's layers that keep a state; None = none does, here or elsewhere

    def kv_layers(self) -> list[LayerKV]:
        """The target's first."""
        return self.target.kv_layers() + self.draft.kv_layers()


def build_parts(
    device: Device,
    ops: Ops,
    models: LoadedModels,
    layout: KVLayout,
    limits: RunnerLimits,
    logits_processors: Sequence[Callable],
    new_proposer: ProposerFactory = proposer_of,
) -> RunnerParts:
    model, graphs = models.target, StepGraphs(device)
    known = graphs if models.links.count == 1 else ()  # stages pad alike, whatever each has recorded
    shapes = _shapes(known, limits, models)
    waiting = _waiting(device, models.draft, limits.num_rows, shapes)
    max_len = limits.max_model_len + max(limits.width, waiting.room)  # padding of a run is looked up, too
    requests = RequestRows(device, num_rows=limits.num_rows, max_model_len=limits.max_model_len)
    blocks = _block_tables(device, layout, limits.num_rows, max(max_len, limits.max_encoder_len))
    sampler = _sampler(device, ops, models, limits, requests.state, logits_processors)
    prompt_logprobs = PromptLogprobsTable(device, limits.num_rows, model.vocab_size, mode=limits.logprobs_mode)
    base = _Base(
        device=device, ops=ops, requests=requests, blocks=blocks, sampler=sampler, shapes=shapes, graphs=graphs
    )
    others = _of_models(base, models, limits, layout)
    of_drafts = _of_drafts(base, models, others, waiting)
    drafts, after = _drafts(base, models, limits, layout.block_size, waiting, new_proposer, of_drafts)
    features = [*others, *drafts, *_of_every_model(base, model, limits)]
    forward = _forward(base, model, after, features, layout.block_size)
    of_features = [table for feature in features for table in feature.tables]
    return RunnerParts(
        requests=requests,
        blocks=blocks,
        tables=[requests, blocks, *of_features],
        choosing=[*sampler.tables, prompt_logprobs],
        features={feature.name: feature for feature in features},
        hooks=[prompt_logprobs, *(hook for feature in features for hook in feature.hooks)],
        sampler=sampler,
        forward=forward,
        loop=_loop(forward, models.links, sampler, features, limits.width - 1),
    )


def _pooling(device: Device, model: CausalLM, num_rows: int) -> DevicePooling:
    return DevicePooling(PooledRows(device, num_rows, model.pool_heads()), PairRows(device, num_rows))


@dataclass(frozen=True, slots=True)
class _Base:
    """What features are made with."""

    device: Device
    ops: Ops
    requests: RequestRows
    blocks: BlockTables
    sampler: SamplePipeline
    shapes: Shapes
    graphs: StepGraphs


def _forward(
    base: _Base, model: CausalLM, after: AfterSample, features: Sequence[DeviceFeature], block_size: int
) -> ForwardPass:
    return ForwardPass(
        ForwardParts(
            device=base.device,
            ops=base.ops,
            model=model,
            requests=base.requests,
            blocks=base.blocks,
            shapes=base.shapes,
            graphs=base.graphs,
            after=after,
            inputs={hook.name: hook for feature in features for hook in feature.inputs},
            block_size=block_size,
        )
    )


def _block_tables(device: Device, layout: KVLayout, num_rows: int, max_len: int) -> BlockTables:
    """max_len: tokens of a row, with those that a step may look up past its end; positions of its encoder"""
    max_blocks = -(-max_len // layout.block_size)
    return BlockTables(device, num_rows=num_rows, max_blocks=max_blocks, num_groups=len(layout.groups))


def _sampler(
    device: Device,
    ops: Ops,
    models: LoadedModels,
    limits: RunnerLimits,
    state: RowState,
    logits_processors: Sequence[Callable],
) -> SamplePipeline:
    speculative = limits.speculative if models.links.is_last else NO_SPECULATION
    new_sampler = sampler_of(speculative, state, distributions_of(speculative, limits.num_rows, models.draft))
    return SamplePipeline(
        device,
        ops,
        num_rows=limits.num_rows,
        vocab_size=models.target.vocab_size,
        logprobs_mode=limits.logprobs_mode,
        logits_processors=logits_processors,
        new_sampler=sharing(new_sampler, models.ranks),
    )


def _listeners(links: StageLinks, ops: Ops, most_drafts: int) -> Listeners:
    return EarlierStages(links, ops.rows, most_drafts) if links.count > 1 and links.is_last else NullListeners()


def _loop(
    forward: ForwardPass,
    links: StageLinks,
    sampler: SamplePipeline,
    features: Sequence[DeviceFeature],
    most_drafts: int,
) -> ForwardLoop:
    """most_drafts: that are proposed for a row and forward"""
    parts = forward.parts
    driver = driver_of(parts.device, parts.ops.rows, parts.requests, parts.shapes)
    if not links.is_last:
        return StageLoop(forward=forward, driver=driver, links=links, most_drafts=most_drafts)
    reporters = [reporter for feature in features for reporter in feature.reporters]
    return StepLoop(
        forward=forward,
        driver=driver,
        sampler=sampler,
        reporters=reporters,
        listeners=_listeners(links, parts.ops, most_drafts),
    )


def _of_every_model(base: _Base, model: CausalLM, limits: RunnerLimits) -> list[DeviceFeature]:
    grammar = DeviceGrammar(base.device, base.requests, base.sampler, limits)
    return [grammar, _pooling(base.device, model, limits.num_rows)]


def _of_models(base: _Base, models: LoadedModels, limits: RunnerLimits, layout: KVLayout) -> list[DeviceFeature]:
    """What some models have and others do not."""
    encoder = _encoder(base, models, limits, layout)
    media = [*_media(base, models, limits), *_rope(base, models.target, limits)]
    return [*_adapters(base, models, limits.num_rows), *_states(base, models), *encoder, *media]


def _adapters(base: _Base, models: LoadedModels, num_rows: int) -> list[DeviceFeature]:
    if models.adapters is None:
        return []
    rows = AdapterRows(base.device, num_rows, base.ops.lora, base.shapes)
    return [DeviceAdapters(base.device, models.adapters, base.graphs, rows)]


def _states(base: _Base, models: LoadedModels) -> list[DeviceFeature]:
    if models.states is None:
        return []
    rows = StateRows(base.device, models.states, base.ops.rows, base.requests.state, base.shapes)
    return [DeviceStates(rows)]


def _encoder(base: _Base, models: LoadedModels, limits: RunnerLimits, layout: KVLayout) -> list[DeviceFeature]:
    model = models.target
    if not isinstance(model, EncoderDecoderLM):
        return []
    rows = EncoderRows(base.device, limits.num_rows, base.ops, base.shapes)
    drafting = [ContentReader(reader, model.own_layers.stop) for reader in models.draft.readers]
    readers = [ContentReader(model), *drafting]
    encoder = DeviceEncoder(base.device, base.ops, readers, rows, layout, limits.max_encoder_len)
    layers = dict(zip(model.own_blocks, model.cross_heads(), strict=True))
    aligned = AlignedRows(limits.num_rows, layers, base.blocks.tables, models.ranks, models.links)
    return [encoder, DeviceAlignment(aligned)]


def _media(base: _Base, models: LoadedModels, limits: RunnerLimits) -> list[DeviceFeature]:
    target, draft, num_vectors = models.target, models.draft, -(-limits.encoder_cache // PAGE) * PAGE
    if not (num_vectors and isinstance(target, DecoderLM)):
        return []

    def vectors(tower: MediaTower, width: int) -> TowerVectors:
        """width: 0 = nothing is encoded"""
        size = (num_vectors if width else 0, width)
        cache = base.device.zeros(size, getattr(torch, limits.dtype))
        return TowerVectors(base.device, base.ops, tower, cache, PAGE)

    begins = models.links.stage == 0  # others begin with what a stage hands on
    own = vectors(target.tower, target.width if begins else 0)
    drafted = own
    if isinstance(draft, DraftModel) and draft.tower is not None and not (begins and draft.tower is target.tower):
        drafted = vectors(draft.tower, draft.proposer.width)
    return [DeviceMedia(base.device, own, drafted, limits.longest_media)]


def _rope(base: _Base, model: CausalLM, limits: RunnerLimits) -> list[DeviceFeature]:
    if not _has_axes(model):
        return []
    rows = RopeTable(base.device, limits.num_rows)
    turns = RopeTurns(base.device, base.ops, rows.segments, model.axes(), base.shapes.most_tokens)
    return [DeviceRope(rows, turns)]


@dataclass(frozen=True, slots=True)
class _OfDrafts:
    """What a draft model has of features."""

    inputs: Sequence[InputHook]  # of its forwards
    first_inputs: Sequence[InputHook]  # of the first after one of the target
    states: DraftedStates


def _of_drafts(
    base: _Base, models: LoadedModels, features: Sequence[DeviceFeature], waiting: WaitingPositions
) -> _OfDrafts:
    draft = models.draft
    names = (ENCODER,) if draft.readers else ()
    inputs = [hook for feature in features for hook in feature.inputs if hook.name in names]
    first_inputs: list[InputHook] = []
    if isinstance(draft, DraftModel):
        axes, most_tokens = draft.proposer.axes(), most_drafted_tokens(base.shapes, waiting.room)
        for feature in features:
            if isinstance(feature, DeviceRope) and axes.has_axes:
                inputs.append(RopeTurns(base.device, base.ops, feature.rows.segments, axes, most_tokens))
            elif isinstance(feature, DeviceMedia) and draft.tower is not None:
                first_inputs.append(DraftedMedia(feature, draft.proposer.ahead))
    rows = [feature.rows for feature in features if isinstance(feature, DeviceStates)]
    states: DraftedStates = NoDraftedStates()
    if rows and draft.state_layers:
        states = DrafterStates(base.device, rows[0], base.ops.rows, base.shapes)
    return _OfDrafts(inputs, first_inputs, states)


def _drafts(
    base: _Base,
    models: LoadedModels,
    limits: RunnerLimits,
    block_size: int,
    waiting: WaitingPositions,
    new_proposer: ProposerFactory,
    of_drafts: _OfDrafts,
) -> tuple[list[DeviceFeature], AfterSample]:
    """-> the feature, or none, and what is proposed after a forward"""
    if not limits.speculative.enabled:
        return [], NothingAfter()
    rows, drafted = DraftRows(base.device, limits.num_rows), DraftedRows(base.device, limits.num_rows)
    if not models.links.is_last:
        return [DeviceDrafts(rows, [])], NothingAfter(models.aux_layers)
    state, draft = base.requests.state, models.draft
    if isinstance(draft, DraftModel):
        draft_state = DraftState(
            computed=drafted.computed,
            most=rows.most,
            tables=base.blocks.tables,
            block_size=block_size,
            ahead=draft.proposer.ahead,
            max_len=draft.max_len,
            num_ids=draft.vocab_size,
        )
        parts = ModelDraftsParts(
            device=base.device,
            ops=base.ops,
            draft=draft,
            drafted=draft_state,
            sampler=base.sampler,
            shapes=base.shapes,
            quiet_row=base.requests.quiet_row,
            rows=state,
            waiting=waiting,
            inputs=of_drafts.inputs,
            first_inputs=of_drafts.first_inputs,
            states=of_drafts.states,
        )
        return [DeviceDrafts(rows, [drafted, waiting])], ModelDrafts(parts)
    proposer = new_proposer(limits.speculative, base.ops, rows.most)
    return [DeviceDrafts(rows, proposer.tables(state))], LookedUpDrafts(proposer)


def _waiting(device: Device, draft: AnyDraftModel, num_rows: int, shapes: Shapes) -> WaitingPositions:
    if not draft.waits:
        return NoWaitingPositions()
    states, room = draft.states, max(ROOM, shapes.most_forwards)
    size = (num_rows, room, states.hidden)
    return KeptStateRows(KeptStates(tuple(device.zeros(size, states.dtype) for _ in range(states.count))))


def _shapes(known: Container[StepShape], limits: RunnerLimits, models: LoadedModels) -> Shapes:
    if limits.graphs == "padded":
        return PaddedShapes(
            known,
            max_num_seqs=limits.max_num_seqs,
            max_num_tokens=limits.max_num_tokens,
            most_forwards=limits.burst_steps,
            width=limits.width,
            by_model=limits.speculative.by_model,
            inputs=HookedInputs(
                some=(ADAPTERS,) if models.adapters is not None else (),
                always=_in_every_forward(models),
                never=_NEVER_RECORDED,
            ),
        )
    recorded = limits.graphs == "exact"
    return ExactShapes(limits.max_num_seqs, limits.max_num_tokens, recorded, limits.width, _NEVER_RECORDED)


def _in_every_forward(models: LoadedModels) -> tuple[str, ...]:
    """Input hooks, in the order of features."""
    states = (STATES,) if models.states is not None else ()
    if isinstance(models.target, EncoderDecoderLM):
        return (*states, ENCODER)
    return (*states, ROPE) if _has_axes(models.target) else states


def _has_axes(model: CausalLM) -> TypeGuard[DecoderLM]:
    return isinstance(model, DecoderLM) and model.axes().has_axes
