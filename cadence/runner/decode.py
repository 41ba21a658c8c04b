"""Forwards of one token per row. The device feeds itself: the host names the rows and queues as many as it likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from cadence.core.step import IntArray
from cadence.device.base import Device
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import DecodeInputs, RowOps, Sampled
from cadence.models.interface.model import CausalLM, ForwardContext, LayerCache, ModelInputs
from cadence.runner.graphs import DecodeShape, GraphCache, Wanted
from cadence.runner.parts import DrawnPart, Part, SampledPart
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.sample.context import SampleContext
from cadence.sample.pipeline import SamplePipeline


@dataclass(frozen=True, slots=True)
class DecodeParts:
    """What a decode loop works with, made by `setup`."""

    device: Device
    ops: Ops
    row_ops: RowOps
    model: CausalLM
    requests: RequestRows
    blocks: BlockTables
    sampler: SamplePipeline
    block_size: int


class DecodeLoop:
    def __init__(self, parts: DecodeParts, graphs: GraphCache) -> None:
        self._parts = parts
        self._graphs = graphs
        self._caches: Sequence[LayerCache] = ()
        most = graphs.most_rows
        self._inputs = _new_inputs(parts.device, most, len(parts.blocks.tables))
        self._query_start = torch.arange(most + 1, dtype=torch.int32, device=parts.device.torch_device)
        self._tokens = torch.zeros((graphs.most_forwards, most), dtype=torch.int32, device=parts.device.torch_device)
        self._rows_np: IntArray = np.zeros(0, dtype=np.int32)  # what the inputs name now, padding included

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._caches = caches
        self._graphs.forget()

    @torch.inference_mode()
    def launch(self, rows_np: IntArray, draws: bool, most_forwards: int, together: int, max_seq_len: int) -> Part:
        """Queues one or more forwards, at most `most_forwards`, of which `together` may come back at once; no sequence
        is longer than `max_seq_len` in the first.

        draws: the rows want a token each and nothing else.
        """
        shape = self._graphs.shape(len(rows_np), most_forwards, together, draws)
        if not self._graphs.knows(shape):
            self.capture(shape)
        self._name_rows(rows_np, shape.num_rows)
        logits, num_forwards = self._graphs.run(shape, self._record, max_seq_len)
        if draws:
            return DrawnPart(self._parts.device, rows_np, self._tokens[:num_forwards, : len(rows_np)])
        return self._sample(rows_np, logits[: len(rows_np)])

    def wanted(self) -> Wanted:
        """What is worth capturing before it is met."""
        return self._graphs.wanted()

    @torch.inference_mode()
    def capture(self, shape: DecodeShape) -> None:
        """Names the dummy row alone, which may run without effect."""
        if not self._graphs.knows(shape):
            self._name_rows(self._rows_np[:0], shape.num_rows)
            self._graphs.capture(shape, self._record)

    def _name_rows(self, rows_np: IntArray, padded: int) -> None:
        wanted_np = np.full(padded, self._parts.requests.quiet_row, dtype=np.int32)
        wanted_np[: len(rows_np)] = rows_np
        if not np.array_equal(wanted_np, self._rows_np):
            self._inputs.rows[:padded].copy_(self._parts.device.upload(wanted_np))
            self._rows_np = wanted_np

    def _record(self, shape: DecodeShape, max_seq_len: int) -> torch.Tensor:
        """Everything here may be captured: no decision depends on what the device holds. -> logits of the last one"""
        parts, inputs = self._parts, self._inputs.first(shape.num_rows)
        ctx = ForwardContext(parts.ops, self._attention(inputs, max_seq_len), self._caches)
        for step in range(shape.num_forwards):
            parts.row_ops.gather(parts.requests.state, parts.blocks.tables, parts.block_size, inputs)
            hidden = parts.model.forward(ModelInputs(inputs.ids, inputs.positions), ctx)
            logits = parts.model.logits(hidden, ctx)
            if shape.draws:
                tokens, peaks = parts.sampler.draw(logits, inputs.rows, inputs.seq_lens)
                sampled = Sampled(inputs.rows, inputs.seq_lens, tokens, peaks)
                parts.row_ops.commit(parts.requests.state, sampled, self._tokens[step:, : shape.num_rows])
        return logits

    def _attention(self, inputs: DecodeInputs, max_seq_len: int) -> AttentionBatch:
        count = inputs.rows.shape[0]
        return AttentionBatch(
            rows=inputs.rows,
            query_start=self._query_start[: count + 1],
            seq_lens=inputs.seq_lens,
            block_tables=self._parts.blocks.tables,
            slots=inputs.slots,
            num_single=count,
            max_query_len=1,
            max_seq_len=max_seq_len,
        )

    def _sample(self, rows_np: IntArray, logits: torch.Tensor) -> Part:
        """What the rows asked for beyond a draw is done as the host finds it, outside any graph."""
        parts, inputs = self._parts, self._inputs.first(len(rows_np))
        requests = parts.requests
        ctx = SampleContext.of(rows_np, inputs.rows, inputs.seq_lens, requests.tokens, requests.prompt_len)
        sampled = parts.sampler.sample(logits, ctx)
        committed = self._tokens[:1, : len(rows_np)]
        where = Sampled(inputs.rows, inputs.seq_lens, sampled.tokens, sampled.peaks[-1])
        parts.row_ops.commit(parts.requests.state, where, committed)
        return SampledPart(parts.device, replace(sampled, tokens=committed[0]))


def _new_inputs(device: Device, most_rows: int, num_groups: int) -> DecodeInputs:
    def zeros(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(most_rows, dtype=dtype, device=device.torch_device)

    slots = tuple(zeros(torch.int64) for _ in range(num_groups))
    return DecodeInputs(zeros(torch.int32), zeros(torch.int32), zeros(torch.int64), zeros(torch.int32), slots)
