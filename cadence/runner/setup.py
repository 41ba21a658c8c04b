"""Puts the runner together: which tables, which hooks, which sampler. The only place that names features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadence.config.speculative import NO_SPECULATION, SpeculativeConfig
from cadence.core.kv_spec import KVLayout
from cadence.device.base import Device
from cadence.kernels.interface.ops import Ops
from cadence.models.interface.model import CausalLM
from cadence.runner.graphs import StepGraphs
from cadence.runner.runner import RunnerParts
from cadence.runner.shapes import ExactShapes, PaddedShapes, Shapes
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.drafts import DraftRows
from cadence.runner.state.requests import RequestRows
from cadence.runner.step_loop import LoopParts, StepLoop
from cadence.sample.pipeline import SamplePipeline
from cadence.sample.prompt_logprobs import PromptLogprobsTable
from cadence.speculate.choose import ProposerFactory, proposer_of


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    max_num_seqs: int
    max_model_len: int
    max_num_tokens: int  # of one forward
    logprobs_mode: str
    graphs: str  # recorded forwards: padded | exact | none
    burst_steps: int  # most forwards of one plan
    speculative: SpeculativeConfig = NO_SPECULATION

    @property
    def num_rows(self) -> int:
        return self.max_num_seqs + 1

    @property
    def width(self) -> int:
        """Most tokens that a row computes and samples in one forward: its newest, and drafts."""
        return 1 + self.speculative.num_tokens

    @property
    def dummy_row(self) -> int:
        """The last row: padding, warm-up and profiling live there."""
        return self.max_num_seqs


def build_parts(
    device: Device,
    ops: Ops,
    model: CausalLM,
    layout: KVLayout,
    limits: RunnerLimits,
    logits_processors: Sequence[Callable],
    new_proposer: ProposerFactory = proposer_of,
) -> RunnerParts:
    max_blocks = -(-(limits.max_model_len + limits.width) // layout.block_size)  # padding of a run is looked up, too
    requests = RequestRows(device, limits.num_rows, limits.max_model_len)
    drafts = DraftRows(device, limits.num_rows)
    blocks = BlockTables(device, limits.num_rows, max_blocks, len(layout.groups))
    sampler = SamplePipeline(device, ops, limits.num_rows, model.vocab_size, limits.logprobs_mode, logits_processors)
    prompt_logprobs = PromptLogprobsTable(device, limits.num_rows, model.vocab_size, limits.logprobs_mode)
    graphs = StepGraphs(device)
    shapes = _shapes(graphs, limits)
    proposer = new_proposer(limits.speculative, ops, drafts.most)
    loop = LoopParts(device, ops, model, requests, blocks, sampler, shapes, graphs, proposer, layout.block_size)
    return RunnerParts(
        blocks=blocks,
        drafts=drafts,
        tables=[requests, drafts, blocks, *sampler.tables, prompt_logprobs, *proposer.tables(requests.state)],
        hooks=[prompt_logprobs],
        sampler=sampler,
        loop=StepLoop(loop),
    )


def _shapes(graphs: StepGraphs, limits: RunnerLimits) -> Shapes:
    if limits.graphs == "padded":
        return PaddedShapes(graphs, limits.max_num_seqs, limits.max_num_tokens, limits.burst_steps, limits.width)
    return ExactShapes(limits.max_num_seqs, limits.max_num_tokens, limits.graphs == "exact", limits.width)
