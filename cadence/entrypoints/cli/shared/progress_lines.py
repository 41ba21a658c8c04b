"""Progress of long work where there is no terminal: a few lines, for logs and pipes."""

from __future__ import annotations

import sys

NUM_LINES = 20  # of one kind of work, about


class ProgressLines:
    """A line on stderr with the first of each kind of work, and then whenever another twentieth of it is done."""

    def __init__(self) -> None:
        self._what = ""
        self._shown = 0  # twentieths

    def show(self, what: str, done: int, total: int) -> None:
        reached = NUM_LINES * done // total if total else NUM_LINES
        if what == self._what and reached <= self._shown:
            return
        self._what, self._shown = what, reached
        print(f"{done} of {total} {what}", file=sys.stderr, flush=True)
