"""Reads one message from a terminal: edited by readline, with pasted lines and line breaks inside it."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from typing import Any

PASTE_SECONDS = 0.02  # lines that follow each other this closely were pasted, where the terminal does not say so


class LineInput:
    """Alt-Enter and Ctrl-J break the line, a pasted text is one message, `\\` at the end continues on the next line.

    GNU readline brings the keys and bracketed paste. libedit, in some Pythons, has neither: there lines that arrive
    at once are taken together.
    """

    def __init__(self, prompt: str, continuation: str, escapes: bool) -> None:
        self._prompt = prompt
        self._continuation = continuation
        self._readline = _readline()
        self._brackets_pastes = self._readline is not None and "libedit" not in (self._readline.__doc__ or "")
        if self._brackets_pastes:
            self._bind(f"set enable-bracketed-paste {'on' if escapes else 'off'}")
            self._bind(r'"\e\C-m": "\C-v\C-j"', r'"\C-j": "\C-v\C-j"')

    def complete(self, words: Sequence[str]) -> None:
        """Tab completes these commands at the beginning of a message."""
        if self._readline is None:
            return

        def candidate(text: str, state: int) -> str | None:
            typed = self._readline.get_line_buffer()
            found = [word for word in words if word.startswith(typed)] if typed.startswith("/") else []
            return found[state][len(typed) - len(text) :] if state < len(found) else None

        self._readline.set_completer_delims(" \n")
        self._readline.set_completer(candidate)
        self._bind("tab: complete" if self._brackets_pastes else "bind ^I rl_complete")

    def read(self) -> str:
        """EOFError at the end, KeyboardInterrupt on Ctrl-C."""
        text = self._read_pasted(self._prompt)
        while _continues(text):
            text = text[:-1] + "\n" + self._read_pasted(self._continuation)
        return text

    def _read_pasted(self, prompt: str) -> str:
        text = input(prompt)
        while not self._brackets_pastes and _more_is_waiting():
            text += "\n" + input()
        return text

    def _bind(self, *lines: str) -> None:
        for line in lines:
            self._readline.parse_and_bind(line)


def _continues(text: str) -> bool:
    slashes = len(text) - len(text.rstrip("\\"))
    return slashes % 2 == 1


def _more_is_waiting() -> bool:
    try:
        return bool(select.select([sys.stdin], [], [], PASTE_SECONDS)[0])
    except (OSError, ValueError):  # not something that can be waited for
        return False


def _readline() -> Any:
    """Importing it is what gives input() arrow keys and history; some Pythons lack it."""
    try:
        import readline
    except ImportError:
        return None
    return readline
