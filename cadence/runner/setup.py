"""Puts the runner together: which tables, which hooks, which sampler. The only place that names features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadence.core.kv_spec import KVLayout
from cadence.device.base import Device
from cadence.kernels.ops import Ops
from cadence.models.interfaces import CausalLM
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
    sampler = SamplePipeline(
        device, ops, limits.num_rows, model.vocab_size, limits.logprobs_mode, logits_processors
    )
    prompt_logprobs = PromptLogprobsTable(device, limits.num_rows, model.vocab_size, limits.logprobs_mode)
    return RunnerParts(
        device=device,
        ops=ops,
        model=model,
        requests=requests,
        blocks=blocks,
        batches=BatchBuilder(device, requests, blocks, layout.block_size),
        tables=[requests, blocks, *sampler.tables, prompt_logprobs],
        hooks=[prompt_logprobs],
        sampler=sampler,
    )
