"""Grammars of the matrix: compiled once for each model in a process, and before an engine steps.

An engine by itself compiles in another process and steps on meanwhile, so what runs beside what would depend on how
fast the machine is, and each of dozens of engines would start such a process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from cadence.core.grammar import GrammarSpec
from cadence.engine import build
from cadence.structured.service import GrammarService, GrammarTicket


class CompiledGrammars:
    """The service of every engine of one model."""

    def __init__(self) -> None:
        self._service: GrammarService | None = None
        self._news = threading.Event()

    @contextmanager
    def used(self) -> Iterator[None]:
        """By engines that are built meanwhile."""
        real: Callable[..., GrammarService] = build._grammar_service

        def shared(*arguments: Any) -> _OfOneEngine:
            *before, on_ready = arguments
            self._service = self._service or real(*before, self._news.set)
            return _OfOneEngine(self._service, self._news, on_ready)

        with mock.patch.object(build, "_grammar_service", shared):
            yield

    def close(self) -> None:
        if self._service is not None:
            self._service.close()


class _OfOneEngine:
    def __init__(self, service: GrammarService, news: threading.Event, on_ready: Callable[[], None]) -> None:
        self._service = service
        self._news = news
        self._on_ready = on_ready

    def request(self, spec: GrammarSpec, tenant: str = "") -> GrammarTicket:
        self._news.clear()
        ticket = self._service.request(spec, tenant)
        while ticket.outcome is None:
            self._news.wait()
            self._news.clear()
        self._on_ready()
        return ticket

    def close(self) -> None:
        """The others go on with it."""
