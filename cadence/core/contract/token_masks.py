"""Which tokens rows may get next, for the mail."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.contract.step import IntArray


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """For the first forward of a step: the tokens that each line of rows with a grammar may get."""

    rows_np: IntArray  # [l] whose each line is, in plan order; lines of one row stand one after the other
    words_np: IntArray  # [l, ceil(vocabulary / 32)] one bit per token, 1 = it may come
