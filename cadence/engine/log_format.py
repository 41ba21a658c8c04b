"""Log lines that no request can fake: whatever is in a message, it stays one line and moves no cursor."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from types import TracebackType

MAX_MESSAGE = 4096  # characters; longer ones are cut
MAX_CHAIN = 8  # exceptions of one traceback, causes and members of groups included

# Controls (C0 with tab, DEL, C1), line and paragraph separators, marks that reorder text, and half surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def escaped(text: str) -> str:
    """`text` as one printable line."""
    if len(text) > MAX_MESSAGE:
        text = text[:MAX_MESSAGE] + "…"
    return _UNSAFE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


class SafeFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802
        """The lines of a traceback are ours; the texts of its exceptions may not be."""
        return "".join(_described(ei[1], MAX_CHAIN)).rstrip("\n") if ei[1] is not None else ""


def _described(error: BaseException, left: int) -> list[str]:
    lines: list[str] = []
    before, words = (error.__cause__, _CAUSE) if error.__cause__ is not None else (error.__context__, _CONTEXT)
    if before is not None and not (error.__suppress_context__ and words is _CONTEXT) and left > 1:
        lines += [*_described(before, left - 1), words]
    if error.__traceback__ is not None:
        lines += ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    lines.append(f"{type(error).__qualname__}: {escaped(_text(error))}\n")
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for number, member in enumerate(members[: max(left - 1, 0)], start=1):
        lines += [f"\nMember {number} of {len(members)}:\n\n", *_described(member, left - len(members))]
    return lines


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it has no text)"


class OutputHandler(logging.Handler):
    """Access lines to stdout, all others to stderr: as they are when a line is written, not when this was made."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(SafeFormatter("%(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream = sys.stdout if record.name == "uvicorn.access" else sys.stderr
            stream.write(self.format(record) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


def set_up_logging(level: str) -> None:
    """All loggers of the process write through one handler."""
    logging.basicConfig(level=level, handlers=[OutputHandler()], force=True)
    logging.captureWarnings(True)
