"""What commands read from and write to the terminal."""

from __future__ import annotations

import sys

from cadence.core.errors import InvalidRequestError


def read_prompt(given: str | None, command: str) -> str:
    """The prompt on the command line; "-" or nothing: from stdin."""
    if given is None and sys.stdin.isatty():
        raise InvalidRequestError(f'give a prompt, for example: cadence {command} "Once upon a time"', "prompt")
    text = sys.stdin.read() if given in (None, "-") else given
    if not text:
        raise InvalidRequestError("the prompt is empty", "prompt")
    return str(text)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
