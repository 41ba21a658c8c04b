"""Calls into a C library by a GPU's stream: each is made on the host when the stream comes to it, and by every graph
that was captured with it. What a call reads and writes lies in memory of the host that the GPU copies to and from.

One stream makes all of them, so buffers are used again by the next call: what the stream does is in order.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch

from cadence.device.calls import Function, Shape

Launch = Callable[[int, int], None]  # (function, address of its words): queued in the current stream
Pinned = Callable[[int], torch.Tensor]  # bytes -> [bytes] uint8 of the host, which the GPU reads and writes
_LEAST_BYTES = 1 << 16


class Staging:
    """Memory for one tensor at a time. It grows; what was handed out before stays, since graphs name it."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        self._buffers: list[torch.Tensor] = []  # each at least twice as large as the one before

    def take(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        num_bytes = math.prod(shape) * dtype.itemsize
        if not self._buffers or len(self._buffers[-1]) < num_bytes:
            self._buffers.append(self._pinned(1 << max(num_bytes, _LEAST_BYTES).bit_length()))
        return self._buffers[-1][:num_bytes].view(dtype).view(shape)


class HostCalls:
    """A `Caller`, for what is not computed by a pool of threads."""

    def __init__(self, launch: Launch, pinned: Pinned) -> None:
        self._launch = launch
        self._arguments, self._results = Staging(pinned), Staging(pinned)
        self._words: dict[tuple[int, ...], Any] = {}  # by (function, words): as many as there are shapes

    def connect(self, library: ctypes.CDLL) -> None:
        """Nothing is called through threads of the library."""

    def call(self, function: Function, *words: int) -> None:
        key = (function.address, *words)
        if key not in self._words:
            self._words[key] = (ctypes.c_int64 * len(words))(*words)
        self._launch(function.address, ctypes.addressof(self._words[key]))

    def empty(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Memory for the result of the next call."""
        return self._results.take(shape, dtype)

    def argument(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the GPU -> what the next call reads: a copy on the host, once the stream has come so far."""
        return self._arguments.take(x.shape, x.dtype).copy_(x, non_blocking=True)
