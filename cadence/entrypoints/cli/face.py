"""How a chat looks: with colours in a terminal, bare through a pipe."""

from __future__ import annotations

import sys
from typing import Any, Protocol


class Face(Protocol):
    def welcome(self, model: str) -> None: ...

    def read(self) -> str:
        """The next line; EOFError at the end, KeyboardInterrupt on Ctrl-C."""
        ...

    def write(self, text: str) -> None: ...

    def end_answer(self, summary: str) -> None: ...

    def note(self, text: str) -> None: ...

    def farewell(self) -> None: ...


class PlainFace:
    """Answers on stdout, everything else on stderr, no prompt."""

    def welcome(self, model: str) -> None:
        pass

    def read(self) -> str:
        return input()

    def write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def end_answer(self, summary: str) -> None:
        self.write("\n")
        if summary:
            self.note(summary)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def farewell(self) -> None:
        pass


class TerminalFace:
    """`console` is a rich.console.Console. Text of the model is written as it is, never as markup.

    The prompt goes through input(), with \\001 and \\002 around colour codes, so that line editing knows its width.
    """

    def __init__(self, console: Any) -> None:
        self._console = console

    def welcome(self, model: str) -> None:
        self._console.print(f"[bold]{model}[/bold] [dim]· /help lists the commands, Ctrl-D leaves[/dim]")

    def read(self) -> str:
        self.write("\n")
        return input("\001\x1b[1;36m\002›\001\x1b[0m\002 " if self._console.color_system else "› ")

    def write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()

    def end_answer(self, summary: str) -> None:
        self.write("\n")
        if summary:
            self.note(summary)

    def note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)

    def farewell(self) -> None:
        self.write("\n")


def open_face(interactive: bool) -> Face:
    if not interactive:
        return PlainFace()
    _enable_line_editing()
    try:
        from rich.console import Console
    except ImportError:
        return PromptedFace()
    return TerminalFace(Console(highlight=False))


class PromptedFace(PlainFace):
    """A terminal without rich."""

    def welcome(self, model: str) -> None:
        self.note(f"{model} · /help lists the commands, Ctrl-D leaves")

    def read(self) -> str:
        self.write("\n")
        return input("> ")

    def farewell(self) -> None:
        self.write("\n")


def _enable_line_editing() -> None:
    """Importing readline is what gives input() arrow keys and history; some Pythons lack it."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
