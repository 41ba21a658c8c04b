"""Calls into a C library: made at once, and kept while a recording is open, to be made again all together.

Every function takes one argument, an array of 64-bit words: pointers, integers, and floats by their bits. A recording
is a list of (function, words), replayed by one call into the library: a CPU's graph.
Results of recorded calls lie in an arena that all recordings share, since no two run at the same time.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol

import numpy as np
import torch

from cadence.device.base import Output
from cadence.device.pool import NoPool, Pool, ThreadPool
from cadence.device.torch_private import UncompiledDispatchMode

WORDS = 29  # of one call, at most: COMMAND_WORDS of commands.h
_CHUNK = 1 << 24  # bytes the arena grows by
_ALIGNMENT = 64  # bytes

_PACKERS = [struct.Struct(f"={count}q").pack for count in range(WORDS + 1)]  # by the number of words
Shape = tuple[int, ...] | torch.Size

# Operations of torch that compute nothing and take no memory.
_VIEWS = {
    "alias", "as_strided", "chunk", "detach", "expand", "permute", "select", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unflatten", "unsqueeze", "view", "_unsafe_view", "_reshape_alias", "unbind",
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def float_word(value: float) -> int:
    """The bits of a float32."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


class Function:
    """One function of the library."""

    def __init__(self, function: Any) -> None:
        self.address = ctypes.cast(function, ctypes.c_void_p).value or 0


class Arena:
    """Memory handed out from the beginning again by every recording."""

    def __init__(self) -> None:
        self._chunks: list[torch.Tensor] = []
        self._chunk = self._offset = 0

    def rewind(self) -> None:
        self._chunk = self._offset = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """[num_bytes] uint8"""
        while True:
            if self._chunk == len(self._chunks):
                self._chunks.append(torch.empty(max(num_bytes, _CHUNK), dtype=torch.uint8))
            start, chunk = self._offset, self._chunks[self._chunk]
            if start + num_bytes <= len(chunk):
                self._offset = start + -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
                return chunk[start : start + num_bytes]
            self._chunk, self._offset = self._chunk + 1, 0


class Watch(UncompiledDispatchMode):
    """Notes the first thing torch computes itself: a replay would miss that."""

    def __init__(self) -> None:
        super().__init__()
        self.obstacle = ""  # "" = none
        self.allowed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in _VIEWS and not self.allowed:
            self.obstacle = self.obstacle or name
        return func(*args, **(kwargs or {}))


class NoRecording:
    """Calls are made and forgotten."""

    def add(self, address: int, words: tuple[int, ...]) -> None:
        """Nothing is kept."""

    def repeat_while(self, flag: torch.Tensor) -> None:
        """Nothing is made again."""

    def empty(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def zeros(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)


class Recording:
    """What was called, in order."""

    def __init__(self, arena: Arena) -> None:
        self.commands: list[tuple[int, ...]] = []  # (address of the function, words)
        self.constants: list[torch.Tensor] = []
        self.again = torch.zeros(1, dtype=torch.int32)  # what decides whether a replay goes on: as it is, never
        self.watch = Watch()
        self._arena = arena

    def add(self, address: int, words: tuple[int, ...]) -> None:
        self.commands.append((address, *words))

    def repeat_while(self, flag: torch.Tensor) -> None:
        self.again = flag

    def empty(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        with self._our_own():
            return self._arena.take(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)

    def zeros(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        with self._our_own():
            self.constants.append(torch.zeros(shape, dtype=dtype))
        return self.constants[-1]

    @contextmanager
    def _our_own(self) -> Iterator[None]:
        """What torch does inside is ours: a replay does without."""
        self.watch.allowed = True
        try:
            yield
        finally:
            self.watch.allowed = False


class CommandGraph(Generic[Output]):
    """A recording, ready to be replayed by `again(commands, count, flag)`."""

    def __init__(self, recording: Recording, again: Callable[[int, int, int], None], output: Output) -> None:
        self._constants = [*recording.constants, recording.again]
        self._commands_np = np.zeros((len(recording.commands), 1 + WORDS), dtype=np.int64)
        for line_np, command in zip(self._commands_np, recording.commands, strict=True):
            line_np[: len(command)] = command
        flag = recording.again.data_ptr()
        self._again = partial(again, self._commands_np.ctypes.data, len(recording.commands), flag)
        self._output = output

    def replay(self, work: Callable[[], Output]) -> Output:
        self._again()
        return self._output


class RerunGraph:
    """Of work that cannot be recorded. obstacle: the first thing that torch computed in it; "" where none is known."""

    def __init__(self, obstacle: str = "") -> None:
        self.obstacle = obstacle

    def replay(self, work: Callable[[], Output]) -> Output:
        return work()


class Caller(Protocol):
    """Who makes calls: at once and maybe recorded, or when a GPU's stream comes to them."""

    def connect(self, library: ctypes.CDLL) -> None: ...

    def call(self, function: Function, *words: int) -> None: ...

    def empty(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Memory for the result of the next call."""
        ...


class Calls:
    """`num_threads` work on each call, the caller's among them."""

    def __init__(self, num_threads: int = 1) -> None:
        self.num_threads = num_threads
        self.pool: Pool = NoPool()
        self._arena = Arena()
        self._recording: Recording | NoRecording = NoRecording()
        self._library: ctypes.CDLL | None = None
        self._call: Any = None  # cadence_call(pool, function, words)

    def connect(self, library: ctypes.CDLL) -> None:
        """Opens the threads of the library, the first time; all calls go through them."""
        if self._library is None:
            self._library = library
            self.pool = ThreadPool(library, self.num_threads)
            self._call = functools.partial(library.cadence_call, self.pool.handle)

    def call(self, function: Function, *words: int) -> None:
        self._call(function.address, _PACKERS[len(words)](*words))
        self._recording.add(function.address, words)

    def repeat_while(self, flag: torch.Tensor) -> None:
        """flag [1 or more] int32: a replay of what is being recorded goes on, from its beginning, as long as the first
        is not 0 at its end."""
        self._recording.repeat_while(flag)

    def empty(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Memory for a result."""
        return self._recording.empty(shape, dtype)

    def zeros(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Zeros that are never written to."""
        return self._recording.zeros(shape, dtype)

    def record(self, work: Callable[[], Output]) -> tuple[CommandGraph[Output] | RerunGraph, Output]:
        """Does the work once, and keeps it -> how to do it again, and what it returned now.

        What torch takes part in is done anew each time.
        """
        if self._library is None:
            return RerunGraph(), work()
        self._arena.rewind()
        self._recording = recording = Recording(self._arena)
        try:
            with recording.watch:
                output = work()
        finally:
            self._recording = NoRecording()
        if recording.watch.obstacle:
            return RerunGraph(recording.watch.obstacle), output
        return CommandGraph(recording, self._again, output), output

    def _again(self, commands: int, count: int, flag: int) -> None:
        assert self._library is not None
        self._library.cadence_replay(self.pool.handle, commands, count, flag)
