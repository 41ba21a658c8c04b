"""How a chat looks: with a prompt, word wrap and colours in a terminal, bare through a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from cadence.entrypoints.cli.chat.line_input import LineInput
from cadence.entrypoints.cli.chat.terminal_mode import TerminalMode
from cadence.entrypoints.cli.chat.wrap import WordWrap, printable


class Screen(Protocol):
    def session(self, model: str, commands: Sequence[str]) -> AbstractContextManager[None]:
        """A chat with this model, from its greeting to its end; `commands` may be completed."""
        ...

    def read(self) -> str:
        """The next message; EOFError at the end, KeyboardInterrupt on Ctrl-C."""
        ...

    def write(self, text: str) -> None:
        """A piece of an answer."""
        ...

    def end_answer(self) -> None: ...

    def note(self, text: str) -> None:
        """Anything that is not an answer. Begins a line of its own."""
        ...


class PlainScreen:
    """Answers on stdout as they are, everything else on stderr, no prompt."""

    def __init__(self) -> None:
        self._inside_line = False

    def session(self, model: str, commands: Sequence[str]) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def read(self) -> str:
        return input()

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
        self._inside_line = not text.endswith("\n") if text else self._inside_line

    def end_answer(self) -> None:
        self.write("\n")

    def note(self, text: str) -> None:
        if self._inside_line:
            self.write("\n")
        print(text, file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Look:
    colours: bool = False
    escapes: bool = False  # the terminal knows them

    @classmethod
    def of_terminal(cls) -> Look:
        """As rich sees it: what the terminal can do, and whether the user wants colours (NO_COLOR)."""
        try:
            from rich.console import Console
        except ImportError:
            return cls()
        console = Console()
        return cls(console.color_system is not None and not console.no_color, not console.is_dumb_terminal)


class TerminalScreen:
    """Text of the model is wrapped at the terminal's width; its control characters are shown, not interpreted."""

    def __init__(self, look: Look) -> None:
        self._colours = look.colours
        self._wrap = WordWrap(_columns)
        self._mode = TerminalMode(look.escapes)
        # \001 and \002 enclose what takes up no columns, so that line editing knows the prompt's width.
        prompt = "\001\x1b[1;36m\002›\001\x1b[0m\002 " if look.colours else "> "
        self._input = LineInput(prompt, ". ", look.escapes)

    @contextlib.contextmanager
    def session(self, model: str, commands: Sequence[str]) -> Iterator[None]:
        self._input.complete(commands)
        name = f"\x1b[1m{model}\x1b[0m" if self._colours else model
        self._print(f"{name} {self._dim('· /help lists the commands, Ctrl-D leaves')}\n")
        with self._mode:
            yield

    def read(self) -> str:
        self._print("\n")
        self._mode.echo(True)
        try:
            return self._input.read()
        except (EOFError, KeyboardInterrupt):
            self._print("\n")
            raise
        finally:
            self._mode.echo(False)

    def write(self, text: str) -> None:
        self._print(self._wrap.feed(text))

    def end_answer(self) -> None:
        self._print(self._wrap.finish() + self._wrap.feed("\n"))

    def note(self, text: str) -> None:
        rest = self._wrap.finish()
        self._print(rest + (self._wrap.feed("\n") if self._wrap.column else ""))
        for line in printable(text).split("\n"):
            wrap = WordWrap(_columns)
            self._print(self._dim(wrap.feed(line) + wrap.finish()) + "\n")

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._colours else text

    def _print(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def open_screen(interactive: bool) -> Screen:
    return TerminalScreen(Look.of_terminal()) if interactive else PlainScreen()


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 0
