"""When each token was said: a path through where heads that follow the words look in the sound."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
_Float64Array = npt.NDArray[np.float64]

_DIAGONAL, _DOWN, _RIGHT = 0, 1, 2  # steps of a path: both, the next token, the next position


def token_times(matrix_np: FloatArray, seconds_a_position: float = 0.02) -> _Float64Array:
    """matrix [tokens, positions], of positions with sound alone: how much a token looks at each -> [tokens]: where each
    begins."""
    if not matrix_np.shape[0] or not matrix_np.shape[1]:
        return np.zeros(matrix_np.shape[0])
    tokens_np, positions_np = warp(-matrix_np.astype(np.float64))
    begins_np = np.diff(tokens_np, prepend=-1) > 0
    times_np: _Float64Array = positions_np[begins_np].astype(np.float64) * seconds_a_position
    return times_np


def warp(costs_np: _Float64Array) -> tuple[IntArray, IntArray]:
    """costs [tokens, positions] -> the cheapest path from the first corner to the last: its tokens and positions.

    A step goes to the next token, to the next position, or to both. Sums lie in float32, a diagonal after the other.
    """
    rows, columns = costs_np.shape
    # Sums and steps by diagonal: entry [i + j, i] is that of i tokens and j positions.
    sums_np = np.full((rows + columns + 1, rows + 1), np.inf, np.float32)
    steps_np = np.full((rows + columns + 1, rows + 1), _RIGHT, np.int8)
    sums_np[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        first, last = max(1, diagonal - columns), min(rows, diagonal - 1)
        both_np = sums_np[diagonal - 2, first - 1 : last]
        down_np = sums_np[diagonal - 1, first - 1 : last]
        right_np = sums_np[diagonal - 1, first : last + 1]
        is_both_np = (both_np < down_np) & (both_np < right_np)
        is_down_np = (down_np < both_np) & (down_np < right_np)
        places_np = np.arange(first, last + 1)
        before_np = np.where(is_both_np, both_np, np.where(is_down_np, down_np, right_np))
        sums_np[diagonal, first : last + 1] = costs_np[places_np - 1, diagonal - places_np - 1] + before_np
        steps_np[diagonal, first : last + 1] = np.where(is_both_np, _DIAGONAL, np.where(is_down_np, _DOWN, _RIGHT))
    return _trace(steps_np, rows, columns)


def _trace(steps_np: npt.NDArray[np.int8], rows: int, columns: int) -> tuple[IntArray, IntArray]:
    path, row, column = list[tuple[int, int]](), rows, columns
    while row > 0 and column > 0:
        path.append((row - 1, column - 1))
        step = steps_np[row + column, row]
        row -= step in (_DIAGONAL, _DOWN)
        column -= step in (_DIAGONAL, _RIGHT)
    path += [(row - 1, place) for place in range(column - 1, -1, -1)] if row > 0 else []
    found_np = np.array(path[::-1], np.int64).reshape(-1, 2)
    return found_np[:, 0], found_np[:, 1]
