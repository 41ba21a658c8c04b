"""Puts the runner together: which tables, which hooks, which sampler. The only place that names features."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from cadence.config.speculative import NO_SPECULATION
from cadence.core.adapter import ADAPTERS
from cadence.core.kv_spec import KVLayout, LayerKV
from cadence.device.base import Device
from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.kernels.interface.links import ONE_STAGE, StageLinks
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import DraftState, KeptStates, RowState
from cadence.lora.store import AdapterStore
from cadence.models.interface.model import CausalLM
from cadence.runner.drafting import Drafting, DraftsElsewhere, LookedUpDrafts
from cadence.runner.feature import DeviceFeature
from cadence.runner.features.adapters.rows import AdapterRows, DeviceAdapters
from cadence.runner.features.grammar.rows import DeviceGrammar
from cadence.runner.graphs import StepGraphs
from cadence.runner.limits import RunnerLimits
from cadence.runner.model_drafts import ModelDrafts, ModelDraftsParts
from cadence.runner.runner import RunnerParts
from cadence.runner.shapes import ExactShapes, PaddedShapes, Shapes, StepShape
from cadence.runner.stage_loop import EarlierStages, StageLoop
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.drafts import DraftedRows, DraftRows
from cadence.runner.state.requests import RequestRows
from cadence.runner.step_loop import Listeners, LoopParts, NobodyElse, StepLoop
from cadence.runner.waiting_positions import ROOM, KeptStateRows, NoWaitingPositions, WaitingPositions
from cadence.sample.pipeline import SamplePipeline
from cadence.sample.prompt_logprobs import PromptLogprobsTable
from cadence.sample.shared_draws import sharing
from cadence.speculate.choose import ProposerFactory, distributions_of, proposer_of, sampler_of
from cadence.speculate.draft_model import NO_DRAFT_MODEL, AnyDraftModel, DraftModel


@dataclass(frozen=True, slots=True)
class LoadedModels:
    target: CausalLM
    draft: AnyDraftModel = NO_DRAFT_MODEL
    adapters: AdapterStore | None = None  # of the target; None = its requests have none
    links: StageLinks = ONE_STAGE  # to the other stages of the target
    aux_layers: Sequence[int] = ()  # of the target, whose streams the drafter of the last stage begins with
    ranks: Collectives = ONE_RANK  # that share the target's layers

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
    shapes = _shapes(known, limits, [ADAPTERS] if models.adapters is not None else [])
    waiting = _waiting(device, models.draft, limits.num_rows, shapes)
    max_len = limits.max_model_len + max(limits.width, waiting.room)  # padding of a run is looked up, too
    requests = RequestRows(device, limits.num_rows, limits.max_model_len)
    drafts, drafted = DraftRows(device, limits.num_rows), DraftedRows(device, limits.num_rows)
    blocks = BlockTables(device, limits.num_rows, -(-max_len // layout.block_size), len(layout.groups))
    speculative = limits.speculative if models.links.is_last else NO_SPECULATION
    sampler = _sampler(device, ops, models, limits, requests.state, logits_processors)
    prompt_logprobs = PromptLogprobsTable(device, limits.num_rows, model.vocab_size, limits.logprobs_mode)
    features = _adapters(device, ops, models, limits.num_rows, shapes, graphs)
    features.append(DeviceGrammar(device, requests, sampler, limits.width - 1))
    proposer = new_proposer(speculative, ops, drafts.most)
    drafting: Drafting = LookedUpDrafts(proposer) if models.links.is_last else DraftsElsewhere(models.aux_layers)
    if isinstance(draft := models.draft, DraftModel):
        counts = (drafted.computed, drafts.most, blocks.tables, layout.block_size)
        state = DraftState(*counts, draft.drafter.ahead, draft.max_len, draft.vocab_size)
        places = (requests.quiet_row, requests.state, waiting)
        drafting = ModelDrafts(ModelDraftsParts(device, ops, draft, state, sampler, shapes, *places))
    of_features = [table for feature in features for table in feature.tables]
    of_drafts, tables = (drafts, drafted, waiting), [*proposer.tables(requests.state), *of_features]
    inputs = {hook.name: hook for feature in features for hook in feature.inputs}
    listeners = _listeners(models.links, ops, limits.width - 1)
    of_rows, forwards = (
        (requests, blocks, sampler),
        (shapes, graphs, drafting, inputs, features[-1].reporters, listeners),
    )
    loop = LoopParts(device, ops, model, *of_rows, *forwards, layout.block_size, limits.width - 1)
    return RunnerParts(
        requests=requests,
        blocks=blocks,
        drafts=drafts,
        tables=[requests, blocks, *of_drafts, *sampler.tables, prompt_logprobs, *tables],
        features={feature.name: feature for feature in features},
        hooks=[prompt_logprobs],
        sampler=sampler,
        loop=_loop(loop, models.links),
    )


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
    new_sampler, vocab_size = sharing(new_sampler, models.ranks), models.target.vocab_size
    return SamplePipeline(
        device, ops, limits.num_rows, vocab_size, limits.logprobs_mode, logits_processors, new_sampler
    )


def _listeners(links: StageLinks, ops: Ops, most_drafts: int) -> Listeners:
    return EarlierStages(links, ops.rows, most_drafts) if links.count > 1 and links.is_last else NobodyElse()


def _loop(parts: LoopParts, links: StageLinks) -> StepLoop:
    return StepLoop(parts) if links.is_last else StageLoop(parts, links)


def _adapters(
    device: Device, ops: Ops, models: LoadedModels, num_rows: int, shapes: Shapes, graphs: StepGraphs
) -> list[DeviceFeature]:
    features: list[DeviceFeature] = []
    if models.adapters is not None:
        rows = AdapterRows(device, num_rows, ops.lora, shapes)
        features.append(DeviceAdapters(device, models.adapters, graphs, rows))
    return features


def _waiting(device: Device, draft: AnyDraftModel, num_rows: int, shapes: Shapes) -> WaitingPositions:
    if not draft.waits:
        return NoWaitingPositions()
    states, room = draft.states, max(ROOM, shapes.most_forwards)
    size = (num_rows, room, states.hidden)
    return KeptStateRows(KeptStates(tuple(device.zeros(size, states.dtype) for _ in range(states.count))))


def _shapes(known: Container[StepShape], limits: RunnerLimits, inputs: Sequence[str]) -> Shapes:
    if limits.graphs == "padded":
        most = (limits.max_num_seqs, limits.max_num_tokens, limits.burst_steps, limits.width)
        return PaddedShapes(known, *most, limits.speculative.by_model, inputs)
    return ExactShapes(limits.max_num_seqs, limits.max_num_tokens, limits.graphs == "exact", limits.width)
