"""Drafts out of earlier texts, in plain torch."""

from __future__ import annotations

from collections import Counter

import torch

from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.kernels.interface.suffix_ops import MILLION, MOST_FOUND, NO_TEXT, SuffixCorpus, SuffixRules


class ReferenceSuffixOps:
    def propose(
        self, state: RowState, batch: StepBatch, most: torch.Tensor, corpus: SuffixCorpus, rules: SuffixRules
    ) -> None:
        has_line = batch.line_start.diff() > 0
        for row in batch.rows[has_line].tolist():
            length = int(state.num_computed[row]) + 1
            count = min(int(most[row]), int(state.max_len[row]) - 1 - length)
            if state.quiet[row] or count < 1:
                continue
            drafts = _drafts(state.tokens[row, :length], _texts(corpus), count, rules)
            state.tokens[row, length : length + len(drafts)] = torch.tensor(drafts, dtype=torch.int32)
            state.num_drafts[row] = len(drafts)

    def remember(self, state: RowState, corpus: SuffixCorpus, row: int, known: int, tail: int) -> None:
        length = int(state.num_computed[row]) + 1
        if length <= known:
            return
        capacity, most_texts = corpus.tokens.shape[0], corpus.starts.shape[0]
        first = max(known - tail, length - corpus.most_tokens + 1, 0)
        text = torch.nn.functional.pad(state.tokens[row, first:length], (0, 1), value=NO_TEXT)
        _, start, index = corpus.span.tolist()
        end = start + len(text)
        corpus.tokens[torch.arange(start, end, device=text.device) % capacity] = text
        corpus.starts[index % most_texts] = start
        oldest = int(corpus.starts[(index + 1) % most_texts]) if index + 1 >= most_texts else 0
        corpus.span.copy_(torch.tensor([max(oldest, end - capacity), end, index + 1]))


def _texts(corpus: SuffixCorpus) -> torch.Tensor:
    """All that counts, in order."""
    first, end, _ = corpus.span.tolist()
    return corpus.tokens[torch.arange(first, end, device=corpus.tokens.device) % corpus.tokens.shape[0]]


def _drafts(known: torch.Tensor, texts: torch.Tensor, most: int, rules: SuffixRules) -> list[int]:
    """known [length], texts [n] -> at most `most`"""
    own, shared = _match_sizes(known, known, rules.depth), _match_sizes(known, texts, rules.depth)
    size = int(torch.cat([own, shared]).amax())
    if size == 0:
        return []
    own_ends, shared_ends = (torch.nonzero(sizes == size)[:, 0].flip(0).tolist() for sizes in (own, shared))
    places = [known[end:].tolist() * (1 + most // (len(known) - end)) for end in own_ends[:MOST_FOUND]]
    places += [texts[end : end + most].tolist() for end in shared_ends[: MOST_FOUND - len(places)]]
    total, drafts = len(places), []
    for i in range(min(most, max(1, size * rules.factor // MILLION))):
        places = [place for place in places if len(place) > i and place[i] != NO_TEXT]
        if not places:
            break
        ((token, count),) = Counter(place[i] for place in places).most_common(1)  # of equals, the first that it met
        if count * MILLION < total * rules.least_share:
            break
        drafts.append(token)
        places = [place for place in places if place[i] == token]
    return drafts


def _match_sizes(known: torch.Tensor, text: torch.Tensor, depth: int) -> torch.Tensor:
    """known [length], text [n] -> [n]: how many tokens before each place are the last that are known, up to `depth`; 0
    of a place that holds no token."""
    same = text != NO_TEXT
    sizes = torch.zeros_like(text)
    for back in range(1, min(depth, len(known)) + 1):
        same[:back] = False
        same[back:] &= text[: max(len(text) - back, 0)] == known[-back]
        if not same.any():
            break
        sizes += same
    return sizes
