"""Token ids that a user gave: integers, each one of the vocabulary."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

from cadence.core.errors import InvalidRequestError

_INT64 = 1 << 63


def integers(token_ids: Iterable[int], name: str = "prompt") -> list[int]:
    """name: where they were given"""
    try:
        return list(map(operator.index, token_ids))
    except TypeError:
        raise InvalidRequestError(f"the token ids of the {name} must be integers", name) from None


def check_range(token_ids: Sequence[int], vocab_size: int, name: str = "prompt") -> None:
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    index, token = next((i, t) for i, t in enumerate(token_ids) if not 0 <= t < vocab_size)
    raise InvalidRequestError(
        f"token {token if abs(token) < _INT64 else '…'} at position {index} of the {name} is out of range: "
        f"the vocabulary has {vocab_size} tokens",
        name,
    )
