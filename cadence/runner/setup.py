"""Puts the runner together: which tables, which hooks, which sampler. The only place that names features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadence.core.kv_spec import KVLayout
from cadence.device.base import Device
from cadence.kernels.interface.ops import Ops
from cadence.kernels.select import select_row_ops
from cadence.models.interface.model import CausalLM
from cadence.runner.decode import DecodeLoop, DecodeParts
from cadence.runner.forward import CapturedForward, EagerForward, Forward
from cadence.runner.graphs import DecodeGraphs, GraphCache, NoGraphs, RecordedDecodes
from cadence.runner.prepare import BatchBuilder
from cadence.runner.runner import RunnerParts
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.sample.pipeline import SamplePipeline
from cadence.sample.prompt_logprobs import PromptLogprobsTable


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    max_num_seqs: int
    max_model_len: int
    logprobs_mode: str
    graphs: str  # of decode forwards: padded | exact | none
    burst_steps: int  # most forwards of one plan

    @property
    def num_rows(self) -> int:
        return self.max_num_seqs + 1

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
) -> RunnerParts:
    max_blocks = -(-(limits.max_model_len + 1) // layout.block_size)
    requests = RequestRows(device, limits.num_rows, limits.max_model_len)
    blocks = BlockTables(device, limits.num_rows, max_blocks, len(layout.groups))
    sampler = SamplePipeline(device, ops, limits.num_rows, model.vocab_size, limits.logprobs_mode, logits_processors)
    prompt_logprobs = PromptLogprobsTable(device, limits.num_rows, model.vocab_size, limits.logprobs_mode)
    row_ops = select_row_ops(ops, device.calls)
    decode = DecodeParts(device, ops, row_ops, model, requests, blocks, sampler, layout.block_size)
    return RunnerParts(
        device=device,
        row_ops=row_ops,
        model=model,
        requests=requests,
        blocks=blocks,
        batches=BatchBuilder(device, requests, blocks, layout.block_size),
        tables=[requests, blocks, *sampler.tables, prompt_logprobs],
        hooks=[prompt_logprobs],
        sampler=sampler,
        forward=_forward(device, EagerForward(ops, model), limits, len(layout.groups)),
        decode=DecodeLoop(decode, _graphs(device, limits)),
    )


def _forward(device: Device, eager: EagerForward, limits: RunnerLimits, num_groups: int) -> Forward:
    if limits.graphs == "padded":
        return CapturedForward(device, eager, limits.max_model_len, num_groups)
    return eager


def _graphs(device: Device, limits: RunnerLimits) -> GraphCache:
    if limits.graphs == "padded":
        return DecodeGraphs(device, limits.max_num_seqs, limits.max_model_len, limits.burst_steps)
    if limits.graphs == "exact":
        return RecordedDecodes(device, limits.max_num_seqs, limits.burst_steps)
    return NoGraphs(limits.max_num_seqs)
