"""Passes of the model over batches that the host names: what the loop of every stage has in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from cadence.device.base import Device
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.aux_hidden import AuxHiddenStates
from cadence.models.interface.model import CausalLM, ForwardContext, LayerCache, ModelInputs
from cadence.models.interface.wanted import Wanted
from cadence.runner.after_sample import AfterSample
from cadence.runner.buffers import StepBuffers
from cadence.runner.feature import InputHook
from cadence.runner.graphs import StepGraphs, StepOutputs
from cadence.runner.layout import BatchLayout, decode_layout
from cadence.runner.shapes import Shapes, StepShape, Until, shape_of
from cadence.runner.state.blocks import BlockTables
from cadence.runner.state.requests import RequestRows
from cadence.sample.prompt_slice import PromptSlice

_NO_ROWS_NP = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class ForwardParts:
    """What a forward works with, made by `setup`."""

    device: Device
    ops: Ops
    model: CausalLM
    requests: RequestRows
    blocks: BlockTables
    shapes: Shapes
    graphs: StepGraphs
    after: AfterSample
    inputs: Mapping[str, InputHook]  # by feature
    block_size: int

    def new_buffers(self) -> StepBuffers:
        return StepBuffers(self.device, self.shapes, len(self.blocks.tables), self.requests.quiet_row)


class ForwardPass:
    """First `name` what is computed, and in which shape; then `run` the shape: `gather` its `batch`, `forward` it."""

    def __init__(self, parts: ForwardParts) -> None:
        self.parts = parts
        self._buffers = parts.new_buffers()
        self.caches: Sequence[LayerCache] = ()  # by layer; others' are not looked at. Those of a proposer come last
        self.no_logits = torch.zeros((0, 0), device=parts.device.torch_device)

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        """Of all layers that are here, the model's first."""
        self.caches = [*caches[:1] * self.parts.model.own_layers.start, *caches]
        self.parts.after.use_caches(caches)
        self.parts.graphs.forget()

    def with_inputs(self, layout: BatchLayout) -> BatchLayout:
        """With what input hooks say of its rows."""
        inputs = tuple(name for name, hook in self.parts.inputs.items() if hook.joins(layout))
        return layout if inputs == layout.inputs else replace(layout, inputs=inputs)

    def shape(self, layout: BatchLayout, until: Until, most_forwards: int, depth: int) -> StepShape:
        """In which a layout runs, up to `most_forwards` times. depth: drafts that rows may have after each"""
        return self.parts.shapes.shape(layout, until, most_forwards, self._depth(depth))

    def name(self, layout: BatchLayout, shape: StepShape, depth: int) -> int:
        """Drafts after a shape that ends before its tokens are made without a recording -> forwards that may follow
        before it is named again"""
        self._buffers.name(layout, shape, () if shape.recorded else layout.long_runs())
        drafted = shape if shape.until is Until.TOKENS else shape_of(layout, Until.TOKENS, self._depth(depth))
        return self.parts.after.name(layout, drafted)

    def name_padding(self, shape: StepShape) -> None:
        """The dummy row alone, in all of a shape."""
        self.name(decode_layout(_NO_ROWS_NP, shape.max_query_len), shape, shape.depth)

    def run(self, shape: StepShape, compute: Callable[[StepShape], StepOutputs]) -> StepOutputs:
        """Computes a shape, once. It may be recorded: no decision in it depends on what the device holds."""
        return self.parts.graphs.run(shape, partial(compute, shape))

    def batch(self, shape: StepShape) -> StepBatch:
        """Of what was named: all of a shape."""
        return self._buffers.batch(shape)

    def context(self, batch: StepBatch, wanted: Wanted) -> ForwardContext:
        aux = AuxHiddenStates(self.parts.after.begins_with.aux_layers)
        attention = batch.attention(self.parts.blocks.tables, self.parts.model.sees)
        return ForwardContext(self.parts.ops, attention, self.caches, wanted, aux)

    def extend(self, ctx: ForwardContext, batch: StepBatch, inputs: tuple[str, ...]) -> ForwardContext:
        """With what features add to the inputs. The batch was gathered."""
        for feature in inputs:
            ctx = self.parts.inputs[feature].extend(ctx, batch)
        return ctx

    def gather(self, batch: StepBatch) -> None:
        parts = self.parts
        parts.ops.rows.gather(parts.requests.state, parts.blocks.tables, parts.block_size, batch)

    def forward(self, batch: StepBatch, ctx: ForwardContext) -> torch.Tensor:
        """-> hidden states, of the tokens that `ctx` wants [T, H]"""
        return self.parts.model.forward(ModelInputs(batch.ids, batch.positions), ctx)

    def prompt_slice(self, layout: BatchLayout) -> PromptSlice:
        return PromptSlice(layout.rows_np, layout.query_start_np, layout.num_computed_np, self.parts.requests.tokens)

    def _depth(self, depth: int) -> int:
        return depth if self.parts.after.by_model else 0
