"""Who attends to what in one step. Built once per step, read by every attention layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

LONG = 2048  # queries of one sequence from which on its run is a long one
LARGE_RUN = 4 * LONG  # as many as are taken together


class Sees(Enum):
    """Which keys of its sequence a query sees, but for a window. An op refuses what it does not know."""

    CAUSAL = "causal"  # those of positions up to its own


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
    seq_lens[r] - (query_start[r + 1] - query_start[r]) + j of the cache and sees what `sees` says (and, with a window
    w, only the last w of those). What rotates a token is not said here.
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


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What one attention layer is, apart from its weights."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0  # 0 = full attention
    softcap: float = 0.0  # 0 = none; else logits become softcap * tanh(logits / softcap)
