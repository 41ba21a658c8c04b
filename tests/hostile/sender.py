"""Sends cases over a few connections at a time and has every answer judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.hostile.bounds import Bounds
from tests.hostile.bystander import Sight
from tests.hostile.case import Case
from tests.hostile.judge import problems
from tests.hostile.report import Report
from tests.hostile.wire import Answer, Connection

BUSY = 429
_SLACK_S = 0.05  # between the clocks of two processes


@dataclass
class Flight:
    """When a case was under way."""

    case: Case
    began: float
    ended: float = field(default=float("inf"))


class Sender:
    def __init__(self, url: str, bounds: Bounds, report: Report, num_connections: int = 8) -> None:
        self._url, self._bounds, self._report = url, bounds, report
        self._num_connections = num_connections

    def send(self, cases: Iterable[Case]) -> list[Flight]:
        """Returns when all are answered and every connection is closed."""
        return asyncio.run(self._send(iter(cases)))

    async def _send(self, cases: Iterator[Case]) -> list[Flight]:
        flights: list[Flight] = []
        await asyncio.gather(*(self._work(cases, flights) for _ in range(self._num_connections)))
        return flights

    async def _work(self, cases: Iterator[Case], flights: list[Flight]) -> None:
        connection = Connection(self._url)
        deadline = self._bounds.scaled(self._bounds.answer_s)
        for case in cases:
            flights.append(flight := Flight(case, time.monotonic()))
            answer = await _ask(connection, case, deadline)
            flight.ended = time.monotonic()
            self._report.note(answer)
            for problem in problems(case, answer):
                self._report.add(problem, [case])
            if case.request.half or not case.is_http:
                connection.drop()
        connection.drop()


async def _ask(connection: Connection, case: Case, deadline: float) -> Answer:
    """Where it is known what must be answered, a server that says it is busy is asked again when it says so."""
    ends = time.monotonic() + deadline
    while True:
        answer = await connection.ask(case.request, deadline, case.leave_after)
        if answer.status != BUSY or not case.expected or BUSY in case.expected or time.monotonic() > ends:
            return answer
        await asyncio.sleep(float(answer.headers.get("retry-after", 1)))


def during(sight: Sight, flights: Sequence[Flight]) -> list[Case]:
    """The cases under way while something took long."""
    ended = sight.began + sight.seconds + _SLACK_S
    return [flight.case for flight in flights if flight.began < ended and flight.ended > sight.began - _SLACK_S]
