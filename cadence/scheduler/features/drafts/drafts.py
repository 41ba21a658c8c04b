"""How many drafts rows may have: what their feature asks."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Drafts(Protocol):
    most: int  # of a row in one forward
    reserve: int  # tokens beyond a row's newest that a model which makes them computes; 0 = no model makes them
    falls_behind: bool  # that model has no keys of tokens it was not asked for drafts at, until a plan says so
    padded: bool  # a forward computes as many tokens for every row as for the one with the most drafts

    def begin(self, row: int, asked: int) -> int:
        """A request that wants at most `asked` drafts takes the row -> drafts that it may have first."""
        ...

    def choose(self, rows_np: np.ndarray) -> tuple[list[tuple[int, int]], int]:
        """Before a plan in which these rows decode -> rows whose most drafts change now, each with its new one; 1 + the
        most drafts of any."""
        ...

    def width(self, most: int) -> int:
        """Lines per row of a plan whose rows have at most so many drafts."""
        ...

    def observe(self, rows_np: np.ndarray, drafts_np: np.ndarray, tokens_np: np.ndarray) -> None:
        """Rows [s] had drafts [m, s] in each of m forwards, which brought tokens [m, s]; 0: the row had ended."""
        ...

    def observe_time(self, num_rows: int, num_forwards: int, tokens_per_forward: float, seconds: float) -> None:
        """A plan of decodes alone, of so many forwards that computed so many tokens on average, took `seconds`."""
        ...
