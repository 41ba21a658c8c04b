"""Drafts out of earlier texts, in C."""

from __future__ import annotations

import torch

from cadence.kernels.cpu.rows import state_words
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.kernels.interface.suffix_ops import SuffixCorpus, SuffixRules
from cadence.kernels.reference.suffix import ReferenceSuffixOps


class CpuSuffixOps:
    def __init__(self, library: CpuLibrary) -> None:
        self._c = library

    def propose(
        self, state: RowState, batch: StepBatch, most: torch.Tensor, corpus: SuffixCorpus, rules: SuffixRules
    ) -> None:
        self._c.suffix_propose(
            **state_words(state), rows=batch.rows, line_start=batch.line_start, most=most, corpus=corpus.tokens,
            span=corpus.span, most_stride=most.stride(0), num_rows=batch.rows.shape[0],
            capacity=corpus.tokens.shape[0], depth=rules.depth, factor=rules.factor, least_share=rules.least_share,
        )  # fmt: skip

    def remember(self, state: RowState, corpus: SuffixCorpus, row: int, known: int, tail: int) -> None:
        ReferenceSuffixOps().remember(state, corpus, row, known, tail)  # once in a request, and never recorded
