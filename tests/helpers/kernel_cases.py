"""Random inputs for the ops: ragged batches over a shuffled block pool, several rows and groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape, DistanceBias, Sees
from cadence.kernels.reference.kv_rows import MOST, QUANTISED, pack_rows
from tests.helpers.byte_caches import on_gpu


@dataclass(frozen=True)
class AttentionCase:
    """Sequences as (tokens already cached, tokens of this step)."""

    sequences: tuple[tuple[int, int], ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    window: int = 0
    softcap: float = 0.0
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None  # None = dtype
    num_groups: int = 1
    seed: int = 0
    apart: int = 0  # entries of other layers between two blocks
    turned: bool = False  # caches of eight bits lie as those of a GPU
    sees: Sees = Sees.CAUSAL
    reach: int = 0  # of a distance bias; 0 = none
    chunk: int = 0  # in place of the window

    @property
    def shape(self) -> AttentionShape:
        return self.shape_on("cpu")

    def shape_on(self, device: str) -> AttentionShape:
        generator = torch.Generator().manual_seed(self.seed)
        columns = max(2 * self.reach - 1, 0)
        table = torch.randn((self.num_heads, columns), generator=generator) * 2
        return AttentionShape(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            window=0 if self.chunk else self.window,
            softcap=self.softcap,
            bias=DistanceBias(table.to(device)),
            chunk=self.chunk,
        )


@dataclass(frozen=True)
class AttentionInputs:
    q: torch.Tensor  # [T, Hq, D]
    kv: tuple[torch.Tensor, torch.Tensor]  # caches as for `Ops.write_kv`; NaN where nothing was written
    batch: AttentionBatch


def make_inputs(case: AttentionCase, device: str = "cpu") -> AttentionInputs:
    generator = torch.Generator().manual_seed(case.seed)
    rng = np.random.default_rng(case.seed)
    lens = [cached + new for cached, new in case.sequences]
    blocks = [-(-n // case.block_size) for n in lens]
    num_rows, num_blocks = len(lens) + 3, sum(blocks) * case.num_groups + 5
    rows = rng.permutation(num_rows)[: len(lens)]
    free = list(rng.permutation(num_blocks))
    tables = [np.zeros((num_rows, max(blocks) + 2), np.int32) for _ in range(case.num_groups)]
    for table in tables:
        for row, count in zip(rows, blocks, strict=True):
            table[row, :count] = [free.pop() for _ in range(count)]
    cache_shape = (num_blocks, case.num_kv_heads, case.block_size, case.head_dim)
    caches = [torch.full(cache_shape, torch.nan) for _ in range(2)]
    for table in tables:
        for row, count in zip(rows, lens, strict=True):
            _fill(caches, table[row], count, generator)
    stored = [_stored(cache, case.cache_dtype or case.dtype) for cache in caches]
    new = np.array([n for _, n in case.sequences])
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    slots = [_slots(case, table, rows) for table in tables]
    q = torch.randn((int(new.sum()), case.num_heads, case.head_dim), generator=generator).to(case.dtype)
    batch = AttentionBatch(
        rows=torch.tensor(rows, dtype=torch.int32, device=device),
        query_start=torch.tensor(starts, device=device),
        seq_lens=torch.tensor(lens, dtype=torch.int32, device=device),
        block_tables=tuple(torch.tensor(table, device=device) for table in tables),
        slots=tuple(torch.tensor(slot, device=device) for slot in slots),
        num_single=int(np.cumprod(new == 1).sum()),
        max_query_len=int(new.max()),
        sees=case.sees,
    )
    if case.turned and case.cache_dtype in MOST:
        stored = [*on_gpu((stored[0], stored[1]))]
    kv = tuple(spread(cache.to(device), case.apart) for cache in stored)
    return AttentionInputs(q.to(device), (kv[0], kv[1]), batch)


def spread(cache: torch.Tensor, apart: int) -> torch.Tensor:
    """The same cache [num_blocks, Hk, block_size, D] in a storage with `apart` entries after each block."""
    count = cache[0].numel()
    size = cache.element_size()
    storage = torch.full((cache.shape[0], (count + apart) * size), 77, dtype=torch.uint8, device=cache.device)
    storage[:, : count * size] = cache.flatten(1).view(torch.uint8)
    return storage.view(cache.dtype)[:, :count].unflatten(1, cache.shape[1:])


def only(inputs: AttentionInputs, index: int, skip: int = 0, take: int | None = None) -> AttentionInputs:
    """Sequence `index` alone, its queries [skip, skip + take) as one step; the cache is the same. Tokens
    after these are left out: queries that see both ways do not see them."""
    batch = inputs.batch
    start, end = (int(batch.query_start[index + i]) for i in range(2))
    stop = end if take is None else start + skip + take
    count = stop - start - skip
    alone = AttentionBatch(
        rows=batch.rows[index : index + 1],
        query_start=torch.tensor([0, count], dtype=torch.int32, device=batch.rows.device),
        seq_lens=batch.seq_lens[index : index + 1] - (end - stop),
        block_tables=batch.block_tables,
        slots=batch.slots,
        num_single=int(count == 1),
        max_query_len=count,
        sees=batch.sees,
    )
    return AttentionInputs(inputs.q[start + skip : stop], inputs.kv, alone)


def _fill(caches: list[torch.Tensor], table_row: np.ndarray, count: int, generator: torch.Generator) -> None:
    _, heads, block_size, dim = caches[0].shape
    positions = np.arange(count)
    blocks = torch.from_numpy(table_row[positions // block_size]).long()
    offsets = torch.from_numpy(positions % block_size)
    for cache in caches:
        cache[blocks, :, offsets] = torch.randn((count, heads, dim), generator=generator)


def _stored(cache: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return pack_rows(cache, dtype) if dtype in QUANTISED else cache.to(dtype)


def _slots(case: AttentionCase, table: np.ndarray, rows: np.ndarray) -> np.ndarray:
    slots = []
    for row, (cached, new) in zip(rows, case.sequences, strict=True):
        positions = np.arange(cached, cached + new)
        slots.append(
            table[row, positions // case.block_size].astype(np.int64) * case.block_size + positions % case.block_size
        )
    return np.concatenate(slots)
