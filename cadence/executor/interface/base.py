"""How the engine reaches the device half: an ordered stream of messages, each a method here.

Messages are carried out in the order they are sent; results of forwards come back in that order too. Plans, results,
calls and their answers can be written as bytes (`core/contract/codec.py`), so that the device half may run in this
process or in others.
"""

from __future__ import annotations

from typing import Protocol

from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.step import Mail, StepPlan, StepResult


class Executor(Protocol):
    def step(self, plan: StepPlan) -> None:
        """Rows end, begin and grow as the plan says. Its forwards run when they are asked for."""
        ...

    def advance(self, step_id: int, first: int, count: int) -> None:
        """Queues forwards [first, first + count) of the newest step; those before have been asked for."""
        ...

    def post(self, step_id: int, mail: Mail) -> None:
        """What rows of the newest step wait for; its first forward has been asked for. Forwards after that one, and a
        further step, follow."""
        ...

    def result(self) -> StepResult:
        """The next part of what was queued; waits for that part only."""
        ...

    def call(self, verb: Verb[P, A], payload: P) -> A:
        """Does what a verb of `core/contract/control.py` says, and answers."""
        ...

    def check(self) -> None:
        """Raises where what carries out messages is gone; between steps, when nothing else would tell."""
        ...

    def busy_seconds(self) -> list[float]:
        """Of each rank in a process of its own: what it has computed since the start, waits for others left out."""
        ...

    def stop(self) -> None:
        """Gives back all that the device holds, once what is queued is done. Nothing may be sent afterwards."""
        ...
