"""What a plan's contents become: keys and values of cross attention, in the blocks that the plan names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.adapter import NO_SLOT
from cadence.core.contract.encoder_work import EncoderWork
from cadence.core.inputs.encoder_input import ENCODER
from cadence.core.model.kv_spec import CROSS, KVLayout
from cadence.device.base import Device
from cadence.kernels.interface.attention_batch import AttentionBatch, Sees
from cadence.kernels.interface.ops import Ops
from cadence.models.interface.encoder import EncoderBatch, EncoderDecoder
from cadence.models.interface.lora_batch import NO_LORA, LoraBatch
from cadence.models.interface.model import ForwardContext, LayerCache
from cadence.runner.feature import DeviceFeature
from cadence.runner.features.encoder.rows import EncoderRows

TOGETHER = 2048  # positions that go through the encoder at once, unless one content has more


@dataclass(frozen=True, slots=True)
class ContentReader:
    """A model whose decoder attends to contents: the target, or one that drafts for it."""

    model: EncoderDecoder
    first_layer: int = 0  # of its layers among all that have caches


class DeviceEncoder(DeviceFeature):
    """Contents are computed before rows begin, so that a plan's first forward finds their keys."""

    name = ENCODER

    def __init__(
        self,
        device: Device,
        ops: Ops,
        readers: Sequence[ContentReader],
        rows: EncoderRows,
        layout: KVLayout,
        max_len: int,
    ) -> None:
        """readers: the target first; one with the encoder of the one before it is given what that has made. max_len:
        positions of a content"""
        self.tables = self.inputs = [rows]
        self._device = device
        self._ops = ops
        self._readers = readers
        self._layout = layout
        self._block_size = layout.block_size
        self._max_len = max_len
        self._caches: Sequence[LayerCache] = ()

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._caches = caches

    def apply(self, payload: list[EncoderWork]) -> None:
        for works in _batches(payload):
            self._encode(ContentBatch.of(works, self._block_size))

    def largest(self) -> list[EncoderWork]:
        """Into the null block."""
        count, mels = -(-self._max_len // self._block_size), self._readers[0].model.mels
        blocks = tuple([0] * count if group.kind == CROSS else [] for group in self._layout.groups)
        work = EncoderWork(
            token_ids_np=np.zeros(0 if mels else self._max_len, dtype=np.int32),
            features_np=np.zeros((mels, 2 * self._max_len if mels else 0), dtype=np.float32),
            length=self._max_len,
            block_ids=blocks,
        )
        return [work] * max(TOGETHER // self._max_len, 1)

    def _encode(self, contents: ContentBatch) -> None:
        slots = {
            group: self._device.upload(slots_np) for group, slots_np in enumerate(contents.slots_np) if len(slots_np)
        }
        encoder = None
        for reader in self._readers:
            model = reader.model
            if model.encoder is not encoder:
                encoder, ctx = model.encoder, self._context(model, contents)
                states = model.encode(self._inputs(model, contents), ctx)
            for layer, new in model.cross_keys(states, ctx):
                cache = self._caches[reader.first_layer + layer]
                self._ops.write_kv(new, (cache.k, cache.v), slots[cache.group])

    def _inputs(self, model: EncoderDecoder, contents: ContentBatch) -> EncoderBatch:
        upload = self._device.upload
        return EncoderBatch(
            ids=upload(contents.ids_np),
            positions=upload(contents.positions_np),
            features=[upload(work.features_np).to(model.dtype) for work in contents.works if work.features_np.size],
        )

    def _context(self, model: EncoderDecoder, contents: ContentBatch) -> ForwardContext:
        """All layers of the encoder have their keys in one place, one after another."""
        upload, layers = self._device.upload, model.encoder_kv_layers()
        shape = (contents.num_blocks, layers[0].num_kv_heads, self._block_size, layers[0].head_dim)
        k, v = torch.zeros((2, *shape), dtype=model.dtype, device=self._device.torch_device)
        batch = AttentionBatch(
            rows=upload(np.arange(len(contents.works), dtype=np.int32)),
            query_start=upload(contents.start_np),
            seq_lens=upload(np.diff(contents.start_np)),
            block_tables=(upload(contents.table_np),),
            slots=(upload(contents.own_slots_np),),
            num_single=0,
            max_query_len=int(np.diff(contents.start_np).max()),
            sees=Sees.BOTH_WAYS,
        )
        return ForwardContext(
            ops=self._ops, batch=batch, caches=[LayerCache(0, k, v)] * len(layers), lora=self._lora(contents)
        )

    def _lora(self, contents: ContentBatch) -> LoraBatch:
        adapters_np = np.array([work.adapter for work in contents.works], dtype=np.int32)
        if (adapters_np == NO_SLOT).all():
            return NO_LORA
        slots = self._device.upload(np.repeat(adapters_np, np.diff(contents.start_np)))
        return LoraBatch(slots, slots, slots)


@dataclass(frozen=True, slots=True)
class ContentBatch:
    """Contents that go through the encoder together, T positions in all."""

    works: Sequence[EncoderWork]
    start_np: np.ndarray  # [contents + 1] int32: where each begins among the T
    ids_np: np.ndarray  # [T] int32
    positions_np: np.ndarray  # [T] int64
    table_np: np.ndarray  # [contents, blocks of the longest] int32: where the encoder's own keys lie
    own_slots_np: np.ndarray  # [T] int64, there
    num_blocks: int  # there
    slots_np: Sequence[np.ndarray]  # per KV group [T] int64, or [0] of one without cross attention

    @staticmethod
    def of(works: Sequence[EncoderWork], block_size: int) -> ContentBatch:
        lengths_np = np.array([work.length for work in works], dtype=np.int32)
        counts_np = -(-lengths_np // block_size)  # blocks of each
        first_np = np.cumsum(counts_np) - counts_np
        table_np = first_np[:, None].astype(np.int32) + np.arange(counts_np.max(), dtype=np.int32)
        own = [list(range(first, first + count)) for first, count in zip(first_np, counts_np, strict=True)]
        groups = [[work.block_ids[group] for work in works] for group in range(len(works[0].block_ids))]
        return ContentBatch(
            works=works,
            start_np=np.concatenate([[0], np.cumsum(lengths_np)]).astype(np.int32),
            ids_np=np.concatenate([_ids_of(work) for work in works]),
            positions_np=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths_np]),
            table_np=table_np,
            own_slots_np=_slots(own, lengths_np, block_size),
            num_blocks=int(counts_np.sum()),
            slots_np=[_slots(blocks, lengths_np, block_size) for blocks in groups],
        )


def _batches(works: Sequence[EncoderWork]) -> Iterator[list[EncoderWork]]:
    """Contents in order, as many at a time as are no more than TOGETHER positions."""
    batch: list[EncoderWork] = []
    for work in works:
        if batch and sum(each.length for each in batch) + work.length > TOGETHER:
            yield batch
            batch = []
        batch.append(work)
    if batch:
        yield batch


def _ids_of(work: EncoderWork) -> np.ndarray:
    """[length] int32: of sound, zeros that nothing reads"""
    return work.token_ids_np if len(work.token_ids_np) else np.zeros(work.length, dtype=np.int32)


def _slots(blocks: Sequence[Sequence[int]], lengths_np: np.ndarray, block_size: int) -> np.ndarray:
    """blocks: of each content; all are empty, or hold its length -> [T or 0] int64"""
    if not any(blocks):
        return np.zeros(0, dtype=np.int64)
    found = []
    for ids, length in zip(blocks, lengths_np, strict=True):
        at_np = np.arange(length, dtype=np.int64)
        found.append(np.asarray(ids, dtype=np.int64)[at_np // block_size] * block_size + at_np % block_size)
    return np.concatenate(found)
