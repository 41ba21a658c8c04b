"""What the terminal does with keys while a chat runs."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

BRACKETED_PASTE_ON, BRACKETED_PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


class TerminalMode:
    """Keys wait, unseen and unchanged, for the next prompt; Ctrl-C still interrupts, and is not printed.

    `echo` turns the echo on for line editing, which looks at it. With `escapes`, pastes between prompts are bracketed.
    """

    def __init__(self, escapes: bool) -> None:
        self._escapes = escapes
        self._saved: list[Any] | None = None

    def __enter__(self) -> Self:
        if termios is not None:
            self._saved = termios.tcgetattr(sys.stdin)
        self.echo(False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if termios is not None and self._saved is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._saved)
        self._bracket(BRACKETED_PASTE_OFF)

    def echo(self, on: bool) -> None:
        if termios is None or self._saved is None:
            return
        mode = list(self._saved)
        mode[0] &= ~termios.ICRNL  # Enter stays apart from Ctrl-J
        mode[3] &= ~termios.ICANON
        if not on:
            mode[3] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)
        if not on:
            self._bracket(BRACKETED_PASTE_ON)

    def _bracket(self, sequence: str) -> None:
        if self._escapes:
            sys.stdout.write(sequence)
            sys.stdout.flush()
