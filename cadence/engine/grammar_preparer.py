"""Requests whose output has a grammar, until it is compiled. Others run meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from cadence.core.contract.request import EngineRequest
from cadence.core.errors import InvalidRequestError
from cadence.core.grammar import GRAMMAR, GrammarSpec
from cadence.engine.intake import Prepared
from cadence.structured.grammar import Grammar, Matcher

if TYPE_CHECKING:  # with packages that an engine without grammars does without
    from cadence.structured.service import GrammarService, GrammarTicket

NewService = Callable[[Callable[[], None]], "GrammarService"]  # (what to call when an outcome is there)


class GrammarPreparer:
    """A `Preparer`. The service begins with the first request that needs it."""

    def __init__(self, new_service: NewService) -> None:
        self._new_service = new_service
        self._service: GrammarService | None = None
        self._tickets: dict[str, tuple[EngineRequest, GrammarTicket]] = {}  # by request id, in order of arrival
        self._news = threading.Event()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._tickets)

    def takes(self, request: EngineRequest) -> bool:
        grammar = request.attached(GrammarSpec)
        if grammar is None:
            return False
        if self._service is None:
            self._service = self._new_service(self._news.set)
        if request.request_id in self._tickets:
            raise InvalidRequestError(f"request_id {request.request_id!r} is already in use", field="request_id")
        self._tickets[request.request_id] = (request, self._service.request(grammar, request.tenant))
        self._news.set()
        return True

    def drop(self, request_ids: Iterable[str]) -> list[EngineRequest]:
        return [self._tickets.pop(each)[0] for each in request_ids if each in self._tickets]

    def ready(self) -> Iterator[Prepared]:
        """Requests whose grammar is compiled, or is refused."""
        if not (self._tickets and self._news.is_set()):
            return
        self._news.clear()
        for request_id, (request, ticket) in list(self._tickets.items()):
            outcome = ticket.outcome
            if outcome is not None:
                del self._tickets[request_id]
                yield request, {GRAMMAR: _matcher(outcome, request)} if isinstance(outcome, Grammar) else outcome

    def requests(self) -> list[EngineRequest]:
        return [request for request, _ in self._tickets.values()]

    def wait(self, seconds: float) -> None:
        self._news.wait(seconds)

    def close(self) -> None:
        if self._service is not None:
            self._service.close()


def _matcher(grammar: Grammar, request: EngineRequest) -> Matcher:
    """After the tokens that the request has from an engine that died."""
    matcher = grammar.matcher()
    for token in request.output_token_ids:
        matcher.accept(token)
    return matcher
