"""Grammars of several tenants: one that has many, or slow ones, holds up no other."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from cadence.core.failure import Failure, FailureCode
from cadence.core.grammar import GrammarKind, GrammarSpec
from cadence.structured.compile_jobs import Compile
from cadence.structured.compile_process import LOOK_S, QUICK_AT_ONCE, CompileLoop, _CompileChild
from cadence.structured.limits import GrammarLimits
from cadence.structured.service import GrammarService

PLACES = GrammarLimits().at_once


def spec(text: str) -> GrammarSpec:
    return GrammarSpec(GrammarKind.REGEX, text)


class FakeCompiler(CompileLoop):
    """Its jobs run until they are told to end."""

    def __init__(self) -> None:
        self._wire_ends = socket.socketpair()
        super().__init__(self._wire_ends[0], Any, GrammarLimits())  # type: ignore[arg-type]
        self.started: list[str] = []

    def _start(self, job: Compile) -> None:
        self.started.append(job.spec.text)
        self._children.append(SimpleNamespace(job=job, slow=False))  # type: ignore[arg-type]

    def add(self, tenant: str, *texts: str) -> None:
        for text in texts:
            self._waiting.add(Compile(0, spec(text), tenant))
        self._start_waiting()

    def all_are_slow(self) -> None:
        for child in self._children:
            child.slow = True
        self._start_waiting()

    def end_first(self) -> None:
        self._children.pop(0)
        self._start_waiting()

    def close(self) -> None:
        self._selector.close()
        for end in self._wire_ends:
            end.close()


@pytest.fixture
def compiler() -> Any:
    fake = FakeCompiler()
    yield fake
    fake.close()


def test_slow_grammars_of_one_leave_a_place_for_another(compiler: FakeCompiler) -> None:
    compiler.add("a", *(f"a{n}" for n in range(40)))
    for _ in range(PLACES):
        compiler.all_are_slow()
    assert compiler.started == ["a0", "a1", "a2"], "no further one of hers, whatever waits"
    compiler.add("b", "b0")
    assert compiler.started[-1] == "b0", "before any of hers has ended"


def test_tenants_take_turns(compiler: FakeCompiler) -> None:
    compiler.add("a", *(f"a{n}" for n in range(10)))
    compiler.add("b", "b0", "b1", "b2")
    compiler.add("c", "c0")
    assert len(compiler.started) == QUICK_AT_ONCE
    for _ in range(6):
        compiler.end_first()
    assert set(compiler.started[:6]) >= {"b0", "b1", "c0"}
    own = [text for text in compiler.started if text[0] == "a"]
    assert own == sorted(own), "each in the order of its coming"


def test_without_tenants_the_first_comes_first_in_every_place(compiler: FakeCompiler) -> None:
    compiler.add("", *(f"{n}" for n in range(9)))
    for _ in range(PLACES):
        compiler.all_are_slow()
    assert compiler.started == [str(n) for n in range(PLACES)]


@pytest.mark.parametrize(
    ("used", "age", "expected"),
    [
        (0.1, 50.0, "quick"),  # it waited for a core
        (1.5, 1.5, "slow"),
        (9.9, 50.0, "slow"),
        (10.5, 10.5, "late"),
        (0.1, 60.5, "starved"),
    ],
)
def test_what_counts_is_the_cpu_time_that_a_grammar_had(
    compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch, used: float, age: float, expected: str
) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda pid, signal: killed.append(pid))
    monkeypatch.setattr("os.setpriority", lambda which, pid, niceness: None)
    monkeypatch.setattr(_CompileChild, "cpu_seconds", lambda child: used)
    child = _CompileChild(Compile(0, spec("a")), 7, -1, time.monotonic() - age)
    compiler._children = [child]
    for _ in range(2):
        compiler._watch()
    assert [name for name in ("slow", "late", "starved") if getattr(child, name)] == [expected] * (expected != "quick")
    assert killed == [7] * (expected in ("late", "starved"))
    assert LOOK_S <= (compiler._pause() or 0.0) <= 10.0


def test_who_fills_the_queue_is_refused_and_another_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    client = SimpleNamespace(send=lambda number, spec, tenant: sent.append(tenant), close=lambda: None)
    monkeypatch.setattr("cadence.structured.service.CompileClient", lambda *arguments: client)
    service = GrammarService(lambda: pytest.fail("nothing is compiled"), GrammarLimits(max_waiting=6))
    tickets = {tenant: [service.request(spec(f"{tenant}{n}"), tenant) for n in range(9)] for tenant in "ab"}
    refused = {tenant: [isinstance(ticket.outcome, Failure) for ticket in some] for tenant, some in tickets.items()}
    assert refused["a"] == [False] * 6 + [True] * 3
    assert refused["b"] == [False] * 3 + [True] * 6, "half of the places"
    assert sent == ["a"] * 6 + ["b"] * 3
    busy = tickets["a"][-1].outcome
    assert isinstance(busy, Failure) and busy.code is FailureCode.BUSY
