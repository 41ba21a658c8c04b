"""Drafts out of texts that were there before. `reference`, `triton` and `cpu` each offer these ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.kernels.interface.row_ops import RowState, StepBatch

MOST_FOUND = 64  # places of a match whose continuations are counted: the latest
MILLION = 1_000_000  # fractions are whole numbers of millionths, so that all implementations decide alike
NO_TEXT = -1  # in place of a token: the end of a text
TEXT_SHARE = 16  # a text takes this part of a corpus at most: its last tokens


@dataclass(frozen=True, slots=True)
class SuffixCorpus:
    """Texts of rows that have ended, in a ring. Places count on for ever: place p lies at tokens[p % capacity]. No
    match and no continuation leaves its text."""

    tokens: torch.Tensor  # [capacity] int32, a power of two; NO_TEXT after each text
    span: torch.Tensor  # [3] int64: the first place that counts, the place after the last, texts there ever were
    starts: torch.Tensor  # [most texts] int64: where text i begins, at i % most texts

    @property
    def most_texts(self) -> int:
        """0: it stays empty."""
        return self.starts.shape[0]

    @property
    def most_tokens(self) -> int:
        """Of one text."""
        return self.tokens.shape[0] // TEXT_SHARE


@dataclass(frozen=True, slots=True)
class SuffixRules:
    depth: int  # most tokens of a match
    factor: int  # most drafts per token of the match, in millionths; one draft there may always be
    least_share: int  # of the places found, those that go on as the drafts do, in millionths


class SuffixOps(Protocol):
    def propose(
        self, state: RowState, batch: StepBatch, most: torch.Tensor, corpus: SuffixCorpus, rules: SuffixRules
    ) -> None:
        """For each row of the batch that has a line and is not quiet: the most of its last tokens, up to `depth`, that
        stood before with a token after them, in the row itself or in the corpus. Of these places the latest
        MOST_FOUND count, those of the row before those of the corpus. The next draft is what most of the places that
        have gone on like the drafts so far go on with, of equals the one of the latest place. A place of the row goes
        on into the drafts, one of the corpus ends with its text.

        Drafts end where fewer than `least_share` of the places go on so, by `factor`, and as in propose_ngram: by most
        [num_rows] int32, strided, and where there is no room for one token more after them.
        """
        ...

    def remember(self, state: RowState, corpus: SuffixCorpus, row: int, known: int, tail: int) -> None:
        """Adds what a row has got beyond `known` tokens, and the `tail` before that, to the corpus; nothing if it has
        got nothing. The oldest texts make room. The corpus has room for a text."""
        ...
