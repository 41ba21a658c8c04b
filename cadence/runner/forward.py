"""The forward of a batch in which rows compute whatever number of tokens."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from cadence.device.base import Device, Graph
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import Ops
from cadence.models.interface.model import CausalLM, ForwardContext, LayerCache, ModelInputs
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens, Wanted
from cadence.runner.state.batch import StepBatch


class Forward(Protocol):
    def use_caches(self, caches: Sequence[LayerCache]) -> None: ...

    def run(self, batch: StepBatch) -> torch.Tensor:
        """-> hidden states [T, H], good until the next run"""
        ...

    def run_for_samples(self, batch: StepBatch) -> torch.Tensor:
        """-> hidden states of the tokens that are sampled after [S, H], good until the next run"""
        ...

    def context(self, batch: StepBatch) -> ForwardContext:
        """What the logits of a batch are computed with."""
        ...


class EagerForward:
    """Launched op by op."""

    def __init__(self, ops: Ops, model: CausalLM) -> None:
        self._ops = ops
        self._model = model
        self._caches: Sequence[LayerCache] = ()

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._caches = caches

    def run(self, batch: StepBatch) -> torch.Tensor:
        return self.compute(batch.ids, batch.positions, batch.attention)

    def run_for_samples(self, batch: StepBatch) -> torch.Tensor:
        attention, count = batch.attention, batch.sample_at.shape[0]
        wanted = LastTokens(batch.sample_at, batch.sample_rows, batch.sample_lengths)
        if not count:  # only the keys are wanted; one token goes on, since no op is made for none
            at = torch.full_like(batch.positions[:1], len(batch.positions) - 1)
            wanted = LastTokens(at, attention.rows[-1:], attention.seq_lens[-1:])
        return self.compute(batch.ids, batch.positions, attention, wanted)[:count]

    def compute(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attention: AttentionBatch,
        wanted: Wanted = EVERY_TOKEN,
    ) -> torch.Tensor:
        ctx = ForwardContext(self._ops, attention, self._caches, wanted)
        return self._model.forward(ModelInputs(ids, positions), ctx)

    def context(self, batch: StepBatch) -> ForwardContext:
        return ForwardContext(self._ops, batch.attention, self._caches)


SIZES = (32, 64, 128, 192, 256, 384, 512)  # tokens of a captured forward; larger ones keep the device busy anyway
MOST_SEQUENCES = 16
MOST_SINGLE = 4  # sequences of one query, which a captured forward does not treat apart


class CapturedForward:
    """Small batches are captured once per padded number of tokens and replayed: a short prompt is computed faster than
    its ops can be launched one by one."""

    def __init__(self, device: Device, eager: EagerForward, max_model_len: int, num_groups: int) -> None:
        self._device = device
        self._eager = eager
        self._max_model_len = max_model_len
        self._graphs: dict[int, Graph] = {}
        self._ids = self._zeros(SIZES[-1], torch.int32)
        self._positions = self._zeros(SIZES[-1], torch.int64)
        self._rows = self._zeros(MOST_SEQUENCES, torch.int32)
        self._query_start = self._zeros(MOST_SEQUENCES + 1, torch.int32)
        self._seq_lens = self._zeros(MOST_SEQUENCES, torch.int32)
        self._slots = tuple(self._zeros(SIZES[-1], torch.int64) for _ in range(num_groups))

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._eager.use_caches(caches)
        self._graphs.clear()

    def run(self, batch: StepBatch) -> torch.Tensor:
        return self._replay(batch) if _is_small(batch) else self._eager.run(batch)

    def run_for_samples(self, batch: StepBatch) -> torch.Tensor:
        return self._replay(batch)[batch.sample_at] if _is_small(batch) else self._eager.run_for_samples(batch)

    def context(self, batch: StepBatch) -> ForwardContext:
        return self._eager.context(batch)

    def _replay(self, batch: StepBatch) -> torch.Tensor:
        tokens = batch.ids.shape[0]
        size = SIZES[bisect.bisect_left(SIZES, tokens)]
        if size not in self._graphs:
            self._capture(size, batch)
        self._fill(batch)
        return self._graphs[size].replay()[:tokens]

    def _capture(self, size: int, batch: StepBatch) -> None:
        """Any batch will do: the eager run stores the keys that the replay will store again."""
        self._fill(batch)
        attention = replace(
            batch.attention,
            rows=self._rows,
            query_start=self._query_start,
            seq_lens=self._seq_lens,
            slots=tuple(slots[:size] for slots in self._slots),
            num_single=0,
            max_query_len=size,
            max_seq_len=self._max_model_len,
        )

        def record() -> torch.Tensor:
            return self._eager.compute(self._ids[:size], self._positions[:size], attention)

        record()  # compiles
        self._graphs[size] = self._device.capture(record)

    def _fill(self, batch: StepBatch) -> None:
        """Padding tokens belong to no sequence and are stored in the null block; padding sequences have no tokens."""
        tokens, attention = batch.ids.shape[0], batch.attention
        _pad(self._ids, batch.ids, 0)
        _pad(self._positions, batch.positions, 0)
        _pad(self._rows, attention.rows, 0)
        _pad(self._query_start, attention.query_start, tokens)
        _pad(self._seq_lens, attention.seq_lens, 0)
        for ours, theirs in zip(self._slots, attention.slots, strict=True):
            _pad(ours, theirs, 0)

    def _zeros(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(size, dtype=dtype, device=self._device.torch_device)


def _is_small(batch: StepBatch) -> bool:
    attention = batch.attention
    return (
        batch.ids.shape[0] <= SIZES[-1]
        and attention.num_sequences <= MOST_SEQUENCES
        and attention.num_single <= MOST_SINGLE
    )


def _pad(target: torch.Tensor, source: torch.Tensor, value: int) -> None:
    target[: source.shape[0]].copy_(source)
    target[source.shape[0] :].fill_(value)
