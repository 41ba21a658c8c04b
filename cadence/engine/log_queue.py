"""Output of a process that never waits for its reader: what is printed or logged goes through a bounded queue, and a
thread writes it. A pipe that is not read stops that thread alone; lines that find no room are dropped and counted."""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
import time
from collections import deque
from typing import TextIO, cast

MAX_BYTES = 2**20  # held for a reader that does not read
FLUSH_S = 1.0  # for the last lines, when the process ends


class LogQueue:
    """Texts in the order of their coming, each for one file descriptor."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.dropped = 0  # texts
        self._max_bytes = max_bytes
        self._texts: deque[tuple[int, bytes]] = deque()
        self._bytes = 0  # queued, and being written
        self._reported = 0  # of `dropped`, those that a line has reported
        self._changed = threading.Condition()
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def put(self, descriptor: int, text: str) -> None:
        """Returns at once."""
        content = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._bytes + len(content) > self._max_bytes:
                self.dropped += 1
                return
            self._texts.append((descriptor, content))
            self._bytes += len(content)
            self._changed.notify_all()

    def flush(self, seconds: float = FLUSH_S) -> bool:
        """Whether all was written within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, seconds)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._texts))
                descriptor, content = self._texts.popleft()
            written = _write(descriptor, content) and self._report_drops(descriptor)
            with self._changed:
                self._bytes -= len(content)
                self.dropped += not written
                self._changed.notify_all()

    def _report_drops(self, descriptor: int) -> bool:
        lost, self._reported = self.dropped - self._reported, self.dropped
        return not lost or _write(
            descriptor, b"WARNING: %d lines of output were dropped: they were not read in time\n" % lost
        )


class NullLogQueue:
    """Of a process whose output is written as it comes."""

    dropped = 0


class QueuedStream(io.TextIOBase):
    """Stands in for sys.stdout or sys.stderr. Whole lines go into the queue, the rest when it is flushed."""

    def __init__(self, stream: TextIO, queue: LogQueue) -> None:
        self._stream = stream
        self._descriptor = stream.fileno()
        self._queue = queue
        self._begun = threading.local()  # .text: a line that is not complete; threads do not mix theirs

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def write(self, text: str) -> int:
        whole = getattr(self._begun, "text", "") + text
        lines, newline, self._begun.text = whole.rpartition("\n")
        if newline:
            self._queue.put(self._descriptor, lines + newline)
        return len(text)

    def flush(self) -> None:
        begun, self._begun.text = getattr(self._begun, "text", ""), ""
        if begun:
            self._queue.put(self._descriptor, begun)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True


def queue_output() -> LogQueue:
    """From now on everything that this process prints goes through one queue; the last of it, when the process ends,
    within FLUSH_S."""
    queue = LogQueue()
    sys.stdout, sys.stderr = _queued(sys.stdout, queue), _queued(sys.stderr, queue)
    atexit.register(queue.flush)
    return queue


def _queued(stream: TextIO, queue: LogQueue) -> TextIO:
    """A descriptor that was closed when the process began has no stream."""
    return cast(TextIO, QueuedStream(stream, queue)) if stream is not None else stream


def _write(descriptor: int, content: bytes) -> bool:
    """Blocks until written. False when the reader is gone."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process made the pipe non-blocking
            select.select((), (descriptor,), ())
            time.sleep(0.01)
        except OSError:
            return False
    return True
