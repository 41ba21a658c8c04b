"""Where the next window of a recording lies. Pure arithmetic on samples: no engine, no tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_SEARCH_SECONDS = 5.0  # before the end of a window, where a quiet place is looked for
_QUIET_SECONDS = 0.1  # of sound that is weighed at once


@dataclass(frozen=True, slots=True)
class Window:
    first: int  # sample
    last: int  # one past its last sample

    @property
    def num_samples(self) -> int:
        return self.last - self.first


class Windows:
    """`current` is the window to be heard; `advance` moves on by what was understood of it."""

    def __init__(self, num_samples: int, most: int, rate: int) -> None:
        """`most`: samples of a window."""
        self._num_samples = num_samples
        self._most = most
        self._rate = rate
        self._first = 0

    @property
    def current(self) -> Window | None:
        """None after the recording's end."""
        if self._first >= self._num_samples:
            return None
        return Window(self._first, min(self._first + self._most, self._num_samples))

    def advance(self, seconds: float) -> None:
        """Seconds of the current window that are done with. Always moves: a window without progress is left whole."""
        window = self.current
        if window is None:
            return
        moved = round(seconds * self._rate)
        self._first += moved if 0 < moved < window.num_samples else window.num_samples


def quiet_end(samples_np: FloatArray, window: Window, rate: int) -> int:
    """Where to end a window that is cut without knowing its words: the quietest place near its end; the recording's
    own end where that is not beyond it."""
    if window.last >= len(samples_np):
        return len(samples_np)
    step = int(_QUIET_SECONDS * rate)
    first = max(window.first + step, window.last - int(_SEARCH_SECONDS * rate))
    count = (window.last - first) // step
    if count < 2:
        return window.last
    pieces_np = samples_np[first : first + count * step].reshape(count, step)
    powers_np = np.square(pieces_np, dtype=np.float64).mean(axis=1)
    # The latest of the quietest: fewer windows.
    quietest = count - 1 - int(np.argmin(powers_np[::-1]))
    return first + quietest * step + step // 2
