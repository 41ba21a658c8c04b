"""`bad_words`: token sequences that must not appear in the output."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.sample.context import SampleContext
from cadence.sample.lines import NOTHING
from cadence.sample.token_lists import NO_ENTRIES_NP, PAD, TokenLists


class BadWords(TokenLists):
    """The last token of a sequence is barred where the output ends in the rest.

    An entry is the sequence backwards: the barred token, then the tokens that must stand at the end, last first.
    """

    def entries(self, request: NewRow) -> np.ndarray:
        words = request.sampling.bad_words_token_ids
        if not words:
            return NO_ENTRIES_NP
        entries_np = np.full((len(words), max(map(len, words))), PAD, dtype=np.int64)
        for entry_np, word in zip(entries_np, words, strict=True):
            entry_np[: len(word)] = word[::-1]
        return entries_np

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        flat = self.gather(ctx.rows_np)
        lines, barred, tails = flat[:, 0], flat[:, 1], flat[:, 2:]
        steps_back = torch.arange(1, tails.shape[1] + 1, device=flat.device)
        positions = ctx.lengths[lines, None] - steps_back  # [N, longest tail]
        found = ctx.tokens[ctx.rows[lines, None], positions.clamp(min=0)]
        in_output = positions >= ctx.prompt_lens[lines, None]
        matches = ((tails == PAD) | (in_output & (found == tails))).all(dim=1)
        # Added, since sequences of one row may end in the same token: one match is enough.
        ban = torch.where(matches, NOTHING, 0.0)
        return logits.index_put_((lines, barred), ban, accumulate=True)
