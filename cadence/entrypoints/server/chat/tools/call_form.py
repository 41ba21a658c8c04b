"""How a model writes calls when it is held to them: as its own format has them, in one fixed spelling."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.entrypoints.server.chat.tools.argument_forms import JSON, ArgumentsForm

NAME, NUMBER = "{name}", "{number}"


@dataclass(frozen=True, slots=True)
class CallForm:
    """`open`, then calls with `between` between them, then `close`. A call is `begin`, its arguments, and `end`."""

    begin: str  # NAME in it is the function's; NUMBER is a number of the model's choice
    end: str
    open: str = ""
    close: str = ""
    between: str = "\n"
    written: ArgumentsForm = JSON
    over: str = ""  # what ends a call with arguments of any kind; "" = as `end`
    once: bool = False  # an answer has one call: what follows it ends the answer
    trigger: str = ""  # what only a call begins with; "" = what opens a block of calls, or `start`
    is_message: bool = False  # among channels: a message of its own, not within one for the reader
    other: CallForm | None = None  # as some of the models write calls

    @property
    def start(self) -> str:
        """What every block of calls begins with."""
        return (self.open + self.begin).partition(NAME)[0].partition(NUMBER)[0]


def object_form(open: str, close: str, arguments: str = "arguments") -> CallForm:
    """One object per block, on a line of its own."""
    return CallForm(f'{open}\n{{"name": "{NAME}", "{arguments}": ', f"}}\n{close}".rstrip())


def list_form(open: str, close: str, arguments: str = "arguments") -> CallForm:
    """One list of objects."""
    return CallForm(f'{{"name": "{NAME}", "{arguments}": ', "}", f"{open}[", f"]{close}", between=", ")
