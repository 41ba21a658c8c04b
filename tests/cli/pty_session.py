"""A command in a pseudo-terminal, typed at as a user types."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # seconds


class PtySession:
    """`python -m cadence.entrypoints.cli.main ARGV`, with what it printed in `seen`."""

    def __init__(self, argv: Sequence[str], columns: int = 60, term: str = "xterm-256color") -> None:
        self.seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._read = 0  # characters of `seen` that were waited for
        self._pid, self._master = pty.fork()
        if self._pid == 0:  # pragma: no cover
            os.chdir(ROOT)
            variables = {**os.environ, "TERM": term, "PYTHONPATH": str(ROOT), "INPUTRC": os.devnull}
            os.execve(sys.executable, [sys.executable, "-m", "cadence.entrypoints.cli.main", *argv], variables)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def __enter__(self) -> PtySession:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._master)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait(self, text: str) -> str:
        """Waits for `text` after what was waited for last; returns what came up to it."""
        ends = time.monotonic() + PATIENCE
        while (found := self.seen.find(text, self._read)) < 0:
            assert time.monotonic() < ends and self._receive(ends), f"no {text!r} in {self.seen[self._read :]!r}"
        before, self._read = self.seen[self._read : found], found + len(text)
        return before

    def leave(self) -> int:
        """Reads to the end; the exit status."""
        ends = time.monotonic() + PATIENCE
        while self._receive(ends):
            assert time.monotonic() < ends
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def _receive(self, ends: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, ends - time.monotonic()))
        try:
            data = os.read(self._master, 4096) if ready else b""
        except OSError:  # the other side is closed
            data = b""
        self.seen += self._decoder.decode(data).replace("\r", "")
        return bool(data)
