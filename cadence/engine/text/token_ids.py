"""Token ids that a user gave: integers, each one of the vocabulary."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from cadence.core.errors import InvalidRequestError

_INT64 = 1 << 63
_MANY = 64  # from here on an array has its ends sooner than a list


def integers(token_ids: Iterable[int], name: str = "prompt") -> list[int]:
    """name: where they were given"""
    given = token_ids if isinstance(token_ids, list) else list(token_ids)
    try:
        try:
            return array("q", given).tolist()
        except OverflowError:  # in no vocabulary: `check_range` says where
            return list(map(operator.index, given))
    except TypeError:
        raise InvalidRequestError(f"the token ids of the {name} must be integers", name) from None


def check_range(token_ids: Sequence[int], vocab_size: int, name: str = "prompt") -> None:
    if not token_ids or _are_within(token_ids, vocab_size):
        return
    index, token = next((i, t) for i, t in enumerate(token_ids) if not 0 <= t < vocab_size)
    raise InvalidRequestError(
        f"token {token if abs(token) < _INT64 else '…'} at position {index} of the {name} is out of range: "
        f"the vocabulary has {vocab_size} tokens",
        name,
    )


def _are_within(token_ids: Sequence[int], vocab_size: int) -> bool:
    if len(token_ids) < _MANY:
        return min(token_ids) >= 0 and max(token_ids) < vocab_size
    try:
        ids_np = np.fromiter(token_ids, dtype=np.int64, count=len(token_ids))
    except OverflowError:
        return False
    return bool(ids_np.min() >= 0 and ids_np.max() < vocab_size)
