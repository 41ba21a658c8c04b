"""Estimates how long a forward takes in which every row decodes, from earlier ones."""

from __future__ import annotations

import math

_SLOWER = 0.125  # weight of a measurement above the average ...
_FASTER = 0.5  # ... and of one below: a first launch that took long is soon forgotten


class DecodeTimes:
    """An average for every power of two of rows."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by bit length of the number of rows

    def observe(self, num_rows: int, num_forwards: int, seconds: float) -> None:
        """So many forwards, one after another, took `seconds`."""
        bucket, measured = num_rows.bit_length(), seconds / num_forwards
        average = self._seconds.setdefault(bucket, measured)
        self._seconds[bucket] = average + (measured - average) * (_SLOWER if measured > average else _FASTER)

    def seconds(self, num_rows: int) -> float:
        """Of one forward; infinity where none of about so many rows was measured."""
        return self._seconds.get(num_rows.bit_length(), math.inf)

    def estimate(self, num_rows: int) -> float:
        """As `seconds`, but where none was measured by the nearest number of rows, and 0 where nothing was."""
        if not (num_rows and self._seconds):
            return 0.0
        bucket = num_rows.bit_length()
        return self._seconds[min(self._seconds, key=lambda known: abs(known - bucket))]

    def bound(self, num_rows: int, seconds: float) -> None:
        """A forward with more to do than to decode these rows took `seconds`."""
        bucket = num_rows.bit_length()
        if self._seconds.get(bucket, 0.0) > seconds:
            self._seconds[bucket] = seconds
