"""A target writes greedily while its proposer drafts, round by round, by hand."""

from __future__ import annotations

from tests.helpers.drafting import DraftedSequence


def drafts_kept(both: DraftedSequence, prompt: list[int], num_tokens: int, most: int) -> list[int]:
    """Of each round until the target has computed `num_tokens` of its own: how many drafts are its tokens."""
    first, counts = len(both.tokens), []
    chosen = int(both.feed(prompt)[-1].argmax())
    while len(both.tokens) < len(prompt) + num_tokens:
        drafts, _ = both.propose(chosen, most, first)
        first, count = len(both.tokens), 0
        chosen = int(both.feed([chosen])[-1].argmax())
        while count < most and chosen == drafts[count]:
            count += 1
            chosen = int(both.feed([chosen])[-1].argmax())
        counts.append(count)
    return counts
