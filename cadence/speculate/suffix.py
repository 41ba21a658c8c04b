"""Suffix decoding: what most often followed the last tokens, in the row or in requests that ended, is proposed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.config.speculative import SpeculativeConfig
from cadence.core.contract.step import NewRow
from cadence.core.contract.table import RequestTable
from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.kernels.interface.suffix_ops import MILLION, NO_TEXT, SuffixCorpus, SuffixOps, SuffixRules
from cadence.speculate.proposer import Proposer

_CAPACITY, _CPU_CAPACITY = 1 << 18, 1 << 17  # tokens of a corpus: all of it is searched in each forward
_NO_CAPACITY = 32  # of one that stays empty
_SHORTEST = 8  # tokens of a text on average, at least: so many texts have room
_MOST_FACTOR = 1000  # drafts per token of a match: beyond any limit on drafts


class SuffixProposer(Proposer):
    def __init__(self, ops: SuffixOps, most: torch.Tensor, rules: SuffixRules, corpus: SuffixCorpus) -> None:
        """most [num_rows] int32, strided: drafts of a row"""
        self._ops = ops
        self._most = most
        self.rules = rules
        self._corpus = corpus

    @classmethod
    def of(cls, asked: SpeculativeConfig, ops: SuffixOps, most: torch.Tensor) -> SuffixProposer:
        rules = SuffixRules(
            depth=asked.suffix_decoding_max_tree_depth,
            factor=round(min(asked.suffix_decoding_max_spec_factor, _MOST_FACTOR) * MILLION),
            least_share=round(asked.suffix_decoding_min_token_prob * MILLION),
        )
        return cls(ops, most, rules, new_corpus(asked.suffix_decoding_max_cached_requests, most.device))

    def propose(self, state: RowState, batch: StepBatch) -> None:
        self._ops.propose(state, batch, self._most, self._corpus, self.rules)

    def tables(self, state: RowState) -> Sequence[RequestTable]:
        if not self._corpus.most_texts:
            return ()
        return (EndedTexts(self._ops, state, self._corpus, self.rules.depth),)


class EndedTexts:
    """A `RequestTable` that hands the tokens of a row to the corpus when it ends: those that were generated, and the
    last ones before, in which the first match of a request like it begins.

    How many were generated the host need not know: with steps in flight it does not.
    """

    def __init__(self, ops: SuffixOps, state: RowState, corpus: SuffixCorpus, tail: int) -> None:
        """tail: tokens before the generated ones"""
        self._ops = ops
        self._state = state
        self._corpus = corpus
        self._tail = tail
        self._known: dict[int, int] = {}  # tokens with which a row began; after a preemption the first ones generated

    def add(self, row: int, request: NewRow) -> None:
        self._known[row] = len(request.token_ids_np)

    def remove(self, row: int) -> None:
        known = self._known.pop(row, 0)
        if known and row != self._dummy_row:
            self._ops.remember(self._state, self._corpus, row, known, self._tail)

    def flush(self) -> None:
        """Nothing is staged: what rows hold is read before it is written over."""

    @property
    def _dummy_row(self) -> int:
        """The last one: what is computed there is no text."""
        return self._state.tokens.shape[0] - 1


def new_corpus(most_texts: int, device: torch.device) -> SuffixCorpus:
    """An empty one, for so many texts as far as there is room."""
    capacity = _CPU_CAPACITY if device.type == "cpu" else _CAPACITY
    most_texts = min(most_texts, capacity // _SHORTEST)
    return SuffixCorpus(
        tokens=torch.full((capacity if most_texts else _NO_CAPACITY,), NO_TEXT, dtype=torch.int32, device=device),
        span=torch.zeros(3, dtype=torch.int64, device=device),
        starts=torch.zeros(most_texts, dtype=torch.int64, device=device),
    )
