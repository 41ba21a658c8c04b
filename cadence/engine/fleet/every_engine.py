"""What is asked of all engines at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from cadence.core.contract.control import A, P, Verb
from cadence.core.errors import EngineDeadError
from cadence.engine.supervise.supervisor import Supervisor


class EveryEngine:
    def __init__(self, supervisors: Sequence[Supervisor]) -> None:
        self._supervisors = supervisors

    @property
    def is_ready(self) -> bool:
        """Whether any is."""
        return any(supervisor.is_ready for supervisor in self._supervisors)

    async def call(self, verb: Verb[P, A], payload: P) -> A:
        """The answer of those that are up; an engine that is down carries out what is replayed when it is back."""
        answers = await self.ask(verb, payload)
        given: list[A] = []
        for supervisor, answer in zip(self._supervisors, answers, strict=True):
            if isinstance(answer, EngineDeadError):
                supervisor.keep(verb, payload)
            else:
                given.append(answer)
        return verb.combined(given)

    def keep(self, verb: Verb[P, Any], payload: P) -> None:
        for supervisor in self._supervisors:
            supervisor.keep(verb, payload)

    async def ask(self, verb: Verb[P, A], payload: P) -> list[A | EngineDeadError]:
        """Answers by engine; the EngineDeadError of one that cannot answer. Raises where none can, and any other
        error."""
        asked = [supervisor.call(verb, payload) for supervisor in self._supervisors]
        answers: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, EngineDeadError):
                raise answer
        if all(isinstance(answer, EngineDeadError) for answer in answers):
            raise answers[0]
        return answers
