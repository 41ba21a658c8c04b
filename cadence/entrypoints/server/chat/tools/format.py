"""One row of the table of formats: how a family of models writes its tool calls."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.entrypoints.server.chat.tools.call_form import CallForm
from cadence.entrypoints.server.chat.tools.syntax import Syntax

SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    names: tuple[str, ...]  # what users call it; the first is the one the log says
    syntax: Syntax  # how one call is written
    open: tuple[str, ...] = ()  # what opens a block of calls
    close: tuple[str, ...] = ()  # what closes it, unless the model forgets it
    bare: tuple[str, ...] = ()  # how a call begins where no block is needed
    listed: str = "no"  # whether brackets stand around a block's calls: "no", "may" or "must"
    between: str = SPACE  # characters between calls
    noise: tuple[str, ...] = ()  # what may follow a call and means nothing
    silent: bool = False  # text after the calls is not for the reader
    ends_thinking: bool = True  # a call in unclosed thoughts ends them: the opening is no accident
    random_ids: str = "call_"  # how an id is made where the model gives none: this and hex, or "mistral"
    form: CallForm | None = None  # how calls are written that a request demands; None = `JSON_CALLS`
    models: str = ""  # for the documents

    @property
    def marks(self) -> tuple[str, ...]:
        """What may begin a call."""
        return (*self.open, *self.bare)

    @property
    def all_marks(self) -> tuple[str, ...]:
        """Every marker of the format, for those who ask which of them are special tokens."""
        return (*self.open, *self.close, *self.bare, *self.noise, *self.syntax.marks)
