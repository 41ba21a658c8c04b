"""What a request's output must look like, as the scheduler sees it: a state that every token advances."""

from __future__ import annotations

from typing import Protocol

from cadence.core.contract.step import IntArray


class Constraint(Protocol):
    """Where one output stands: a function of its tokens and of nothing else."""

    @property
    def num_words(self) -> int:
        """Of a mask: ceil(vocabulary / 32)."""

    @property
    def finished(self) -> bool:
        """The output is complete and has had a stop token: nothing else may follow."""

    @property
    def error(self) -> str:
        """Why no token can follow, where that took too much work to find out; "" = it did not."""

    def accept(self, token: int) -> bool:
        """False, and nothing is changed, where the token may not come."""

    def rollback(self, count: int) -> None:
        """Takes the last `count` accepted tokens back."""

    def ahead(self, most: int) -> list[int]:
        """The tokens that must come next, as far as exactly one may; at most so many."""

    def fill(self, mask_np: IntArray) -> None:
        """Which tokens may come next: [num_words], one bit each."""
