"""Who attends to what in one step. Built once per step, read by every attention layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

LONG = 2048  # queries of one sequence from which on its run is a long one
LARGE_RUN = 4 * LONG  # as many as are taken together
EVERY_KEY = 1 << 30  # more than any sequence has


class Sees(Enum):
    """Which keys of its sequence a query sees, but for a window or a chunk. An op refuses what it does not know."""

    CAUSAL = "causal"  # those of positions up to its own
    BOTH_WAYS = "both ways"  # all, those of [0, seq_len)


_SEEN_AFTER = {Sees.CAUSAL: 0, Sees.BOTH_WAYS: EVERY_KEY}  # keys after a query's own, at most


@dataclass(frozen=True, slots=True)
class LongRun:
    """Many queries of one sequence, all known to the host."""

    sequence: int  # number among the R
    first: int  # query, among the T
    count: int  # of queries
    before: int  # tokens in the cache before these


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """R sequences, T tokens in all; tokens of sequence r are [query_start[r], query_start[r + 1]).

    Sequences of one query come first, so sequence r < num_single has exactly the query r.

    The queries of a sequence are its last tokens: query j of sequence r stands at position
    seq_lens[r] - (query_start[r + 1] - query_start[r]) + j of the cache and sees what `sees` says, within the window or
    the chunk of the layer. What rotates a token is not said here.
    """

    rows: torch.Tensor  # [R] int32, row of each sequence in the block tables
    query_start: torch.Tensor  # [R + 1] int32
    seq_lens: torch.Tensor  # [R] int32, tokens in the cache once this step's keys are written
    block_tables: tuple[torch.Tensor, ...]  # per group [num_rows, max_blocks] int32, indexed by row
    slots: tuple[torch.Tensor, ...]  # per group [T] int64: block * block_size + offset of each token
    num_single: int  # leading sequences that have one query, known to the host
    max_query_len: int  # exact, known to the host
    long_runs: tuple[LongRun, ...] = ()  # in order; a recorded forward, and one of drafts, names none
    sees: Sees = Sees.CAUSAL  # every query of the batch

    @property
    def num_sequences(self) -> int:
        return self.rows.shape[0]


@dataclass(frozen=True, slots=True, eq=False)  # equal to itself alone: a shape that has one can be hashed
class DistanceBias:
    """What a layer adds to its scaled scores for the distance from query to key: ALiBi, relative position buckets."""

    table: torch.Tensor  # [Hq, 2 * reach - 1] float32, dense: in column reach - 1 + d what a key d after its query gets

    def __post_init__(self) -> None:
        table = self.table
        if table.dtype is not torch.float32 or not table.is_contiguous() or (table.shape[1] % 2 == 0 and table.numel()):
            raise ValueError(f"a distance bias is dense float32 [Hq, 2 * reach - 1], not {table.dtype} {table.shape}")

    @property
    def reach(self) -> int:
        """From this distance on, either way, a key gets what one at reach - 1 does; 0 = there is no bias."""
        return (self.table.shape[1] + 1) // 2

    def of_heads(self, own: range) -> DistanceBias:
        return DistanceBias(self.table[own.start : own.stop]) if self.reach else self


NO_BIAS = DistanceBias(torch.empty(0, 0))


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What one attention layer is, apart from its matrices.

    With a window, a query at position p sees keys k with |p - k| < window, of those that it sees without. That is the
    `sliding_window` of decoders; both ways it is local_attention // 2 + 1 of ModernBERT, sliding_window // 2 + 1 of
    Gemma 3.

    With a chunk, sequences are cut into so many tokens each, and a query sees no key before the beginning of its own
    chunk: those of [p - p % chunk, p]. Causal alone.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0  # 0 = full attention
    softcap: float = 0.0  # 0 = none; else logits become softcap * tanh(logits / softcap)
    bias: DistanceBias = NO_BIAS  # added after the scale; not with a softcap
    chunk: int = 0  # 0 = sequences are not cut; not with a window

    def __post_init__(self) -> None:
        if self.bias.reach and (self.softcap or self.bias.table.shape[0] != self.num_heads):
            shape = list(self.bias.table.shape)
            raise ValueError(f"a distance bias {shape} for {self.num_heads} heads with softcap {self.softcap}")
        if self.chunk and self.window:
            raise ValueError(f"a chunk of {self.chunk} tokens beside a window of {self.window}")

    def seen_around(self, sees: Sees) -> tuple[int, int]:
        """(keys before its own, keys after it) that a query sees, at most; within its chunk, where there are some."""
        if self.chunk and sees is not Sees.CAUSAL:
            raise ValueError(f"queries that see {sees.value}, and chunks of {self.chunk} tokens")
        each_way = min(self.window or EVERY_KEY, EVERY_KEY) - 1
        return each_way, min(each_way, _SEEN_AFTER[sees])
