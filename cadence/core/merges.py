"""Merges of byte-pair encoding that a vocabulary with scores stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LONGEST = 1024  # characters of a token that is put together; those of real models have 512 at most


def merges_by_score(tokens: Sequence[str], scores_np: np.ndarray) -> list[tuple[str, str]]:
    """scores_np [tokens]. Every way to put a token together from two others: of better ones first; of one token, longer
    left parts first."""
    known = set(tokens)
    merges: list[tuple[str, str]] = []
    counts: list[int] = []  # merges that yield each token
    for token in tokens:
        before = len(merges)
        for cut in range(len(token) - 1 if len(token) <= _LONGEST else 0, 0, -1):
            if token[:cut] in known and token[cut:] in known:
                merges.append((token[:cut], token[cut:]))
        counts.append(len(merges) - before)
    order_np = np.argsort(np.repeat(-scores_np, counts), kind="stable")
    return [merges[index] for index in order_np.tolist()]
