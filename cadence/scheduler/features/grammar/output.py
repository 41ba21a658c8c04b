"""An output with a grammar, as the scheduler keeps it with its request."""

from __future__ import annotations

from itertools import takewhile

from cadence.core.contract.request import FinishReason
from cadence.core.failure import Failure, FailureCode
from cadence.core.grammar import GRAMMAR, GrammarSpec
from cadence.scheduler.features.grammar.constraint import Constraint
from cadence.scheduler.request_state import RequestState

_MOST_AHEAD = 16  # tokens that a constraint forces, which are looked for


class ConstrainedOutput:
    """Its constraint stands after the tokens that the host knows."""

    __slots__ = ("_ahead", "_looked", "constraint", "drafts")

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.drafts: list[int] = []  # that its next forward verifies
        self._ahead: list[int] = []  # tokens that must follow, as far as they were looked for
        self._looked = False  # for these

    def ahead(self) -> list[int]:
        """Tokens that its constraint forces next."""
        if not self._looked:
            self._ahead, self._looked = self.constraint.ahead(_MOST_AHEAD), True
        return self._ahead

    def follow(self, new: list[int]) -> list[int]:
        """New tokens -> as many as its constraint allows, which has gone on by them."""
        allowed = list(takewhile(self.constraint.accept, new))
        foreseen = self._ahead[: len(new)] == new
        self._ahead = self._ahead[len(new) :] if foreseen else []
        self._looked = bool(self._ahead)
        return allowed


def output_of(request: RequestState) -> ConstrainedOutput:
    """Of a request that waits for mail."""
    output: ConstrainedOutput = request.kept[GRAMMAR]
    return output


def end_of_output(request: RequestState) -> tuple[FinishReason, Failure | None]:
    """Why a request ends whose output no token may follow."""
    error, grammar = output_of(request).constraint.error, request.request.attached(GrammarSpec)
    if error and grammar is not None:
        return FinishReason.ERROR, Failure(FailureCode.BAD_GRAMMAR, f"{grammar.source} takes too much work: {error}")
    return FinishReason.STOP, None
