"""Grammars are compiled beside the engine: what is hostile fails alone, within its limits, and the rest goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import xgrammar

from cadence.core.failure import Failure, FailureCode
from cadence.core.grammar import GrammarBackend, GrammarKind, GrammarSpec
from cadence.structured.cache import GrammarCache
from cadence.structured.grammar import Grammar
from cadence.structured.limits import GrammarLimits
from cadence.structured.service import GrammarService
from cadence.structured.xgrammar_backend import XgrammarGrammar, XgrammarTables, compile_with_xgrammar
from tests.helpers.grammars import grammar, outcome_of, smollm2_backends, tiny_backends
from tests.helpers.wide import mostly_wide

LIMITS = GrammarLimits(seconds=200.0, memory_bytes=2**28, max_waiting=16)  # a busy machine may take its time
Open = Callable[..., GrammarService]


@pytest.fixture
def open_service() -> Iterator[Open]:
    opened = []

    def service(limits: GrammarLimits = LIMITS, on_ready: Callable[[], None] = lambda: None) -> GrammarService:
        backends = smollm2_backends()
        opened.append(GrammarService(lambda: (backends.vocabulary, backends._encode), limits, on_ready))
        return opened[-1]

    yield service
    for one in opened:
        one.close()


def spec(kind: str, text: str, backend: str = "auto") -> GrammarSpec:
    return GrammarSpec(GrammarKind(kind), text, GrammarBackend(backend), source=f"structured_outputs.{kind}")


def test_a_grammar_comes_once_and_is_kept(open_service: Open) -> None:
    ready = threading.Event()
    service = open_service(on_ready=ready.set)
    outcome_of(service.request(spec("regex", "warm")))
    os.kill(service._client.pid, signal.SIGSTOP)  # nothing is compiled meanwhile
    ticket = service.request(spec("regex", "[ab]+"))
    twin = service.request(spec("regex", "[ab]+"))
    assert ticket.outcome is None and twin.outcome is None
    ready.clear()
    os.kill(service._client.pid, signal.SIGCONT)
    assert ready.wait(200)
    found = outcome_of(ticket)
    assert isinstance(found, Grammar) and outcome_of(twin) is found
    assert service.request(spec("regex", "[ab]+")).outcome is found
    matcher = found.matcher()
    assert matcher.accept(smollm2_backends()._encode(b"ab")[0]) and not matcher.finished


WIDE = {f"p{n}": {"type": "string", "maxLength": 500} for n in range(99)}
HOSTILE = {
    "exponential regex": ("regex", "((a{1,100}){1,100}){1,100}", "xgrammar"),
    "exponential regex, lazily": ("regex", "((a{1,100}){1,100}){1,100}b", "llguidance"),
    "large repetition": ("regex", "[a-z ]{1,100000}", "xgrammar"),
    "many choices": ("choice", json.dumps([f"choice number {n}" for n in range(50_000)]), "xgrammar"),
    "wide schema": (
        "json_schema",
        json.dumps(
            {"type": "object", "properties": {f"p{n}": {"type": "string", "maxLength": 500} for n in range(99)}}
        ),
        "xgrammar",
    ),
    "recursive grammar": ("ebnf", 'root ::= root root "a"', "auto"),
    "grammar without words": ("ebnf", 'root ::= a\na ::= "x" a', "llguidance"),
    "unknown rule": ("ebnf", "root ::= nothing", "auto"),
    "bad regex": ("regex", "(a", "auto"),
    "bad regex, lazily": ("regex", "(a", "llguidance"),
    "bad Lark": ("lark", "start", "auto"),
    "unknown type": ("json_schema", '{"type": "nonsense"}', "auto"),
    "dangling reference": ("json_schema", '{"$ref": "#/$defs/nothing"}', "auto"),
    "reference to itself": ("json_schema", '{"$ref": "#"}', "auto"),
    "remote reference": ("json_schema", '{"$ref": "https://example.com/schema.json"}', "auto"),
    "bad tag": ("structural_tag", '{"type": "structural_tag"}', "auto"),
    "deep schema": ("json_schema", '{"type":"array","items":' * 400 + "{}" + "}" * 400, "auto"),
}


HONEST = [json.dumps({"type": "object", "properties": {name: {"type": "integer"}}}) for name in "abcdefgh"]
MAYBE = ("exponential regex", "exponential regex, lazily", "large repetition", "many choices", "deep schema")


@pytest.mark.slow
def test_what_is_hostile_fails_alone(open_service: Open) -> None:
    """All at once, and an honest one among them."""
    service = open_service(dataclasses.replace(LIMITS, max_waiting=64, seconds=3.0))
    outcome_of(service.request(spec("regex", "warm")))
    hostile = {name: service.request(spec(*fields)) for name, fields in HOSTILE.items()}
    honest = [service.request(spec("json_schema", schema)) for schema in HONEST]
    assert any(isinstance(outcome_of(ticket), Grammar) for ticket in honest)  # one may wait for a busy machine
    for name, ticket in hostile.items():
        found = outcome_of(ticket)
        if isinstance(found, Grammar):  # it may well be followed, if in time
            assert name in MAYBE, name
            continue
        assert found.code is FailureCode.BAD_GRAMMAR, name
        assert found.message.startswith(f"structured_outputs.{HOSTILE[name][0]} "), name
        assert len(found.message) < 400 and "\n" not in found.message, name
    assert all(service.request(spec(*fields)).outcome is not None for fields in HOSTILE.values())  # known by now


def test_limits_are_named(open_service: Open) -> None:
    slow = open_service(dataclasses.replace(LIMITS, seconds=0.3))
    outcome_of(slow.request(spec("regex", "warm")))
    found = outcome_of(slow.request(spec(*HOSTILE["wide schema"])))
    assert isinstance(found, Failure) and "takes more than 0.3 s to compile" in found.message
    patient = dataclasses.replace(LIMITS, seconds=240.0)  # on a busy machine, too, it is not time that runs out
    small = open_service(dataclasses.replace(patient, compiled_bytes=2**20))
    found = outcome_of(small.request(spec("regex", "[a-z]{1,100}", "xgrammar")))
    assert isinstance(found, Failure) and "more than 1 MiB" in found.message
    tight = open_service(dataclasses.replace(patient, memory_bytes=2**24))
    found = outcome_of(tight.request(spec("regex", "[a-z ]{1,400}", "xgrammar")))
    assert isinstance(found, Failure) and "more than 16 MiB of memory" in found.message


def test_a_machine_that_is_too_busy_is_not_held_against_a_grammar(open_service: Open) -> None:
    starved = open_service(dataclasses.replace(LIMITS, clock_seconds=0.3))
    outcome_of(starved.request(spec("regex", "warm")))
    for _ in range(2):  # it is not kept: the second is compiled anew
        ticket = starved.request(spec(*HOSTILE["wide schema"]))
        assert ticket.outcome is None
        found = outcome_of(ticket)
        assert isinstance(found, Failure) and found.code is FailureCode.BUSY and "too busy" in found.message


def test_a_killed_process_is_started_again(open_service: Open) -> None:
    service = open_service()
    outcome_of(service.request(spec("regex", "first")))
    first = service._client.pid
    waiting = service.request(spec("regex", "[a-z]{1,40}", "xgrammar"))
    os.kill(first, signal.SIGKILL)
    assert isinstance(outcome_of(waiting), Grammar)
    assert service._client.pid not in (0, first)
    assert isinstance(outcome_of(service.request(spec("regex", "second"))), Grammar)


def test_a_queue_has_an_end(open_service: Open) -> None:
    service = open_service(dataclasses.replace(LIMITS, max_waiting=3))
    tickets = [service.request(spec("regex", f"a{n}")) for n in range(6)]
    refused = [ticket.outcome for ticket in tickets[3:]]
    assert all(isinstance(found, Failure) and "too many others wait" in found.message for found in refused)
    assert all(isinstance(outcome_of(ticket), Grammar) for ticket in tickets[:3])
    assert isinstance(outcome_of(service.request(spec("regex", "a5"))), Grammar)  # a little later


def test_closing_leaves_nothing_behind(open_service: Open) -> None:
    service = open_service()
    outcome_of(service.request(spec("regex", "a")))
    pid = service._client.pid
    service.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    open_service().close()  # nothing was ever asked


def test_a_structural_tag_counts_with_all_its_bytes() -> None:
    """xgrammar tells a tenth of them: by that the cache would keep many times what it may."""
    content = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    tags = [{"type": "tag", "begin": f"<f{n}>", "content": content, "end": "</f>"} for n in range(8)]
    format = {"type": "triggered_tags", "triggers": ["<f"], "tags": tags}
    asked = spec("structural_tag", json.dumps({"type": "structural_tag", "format": format}))
    tables = XgrammarTables(tiny_backends([b"abc"]).vocabulary, lambda text: [], xgrammar)
    data = compile_with_xgrammar(asked, tables)
    found = XgrammarGrammar.read(asked, data, tables)
    assert found.num_bytes >= len(data) > found.compiled.memory_size_bytes


def test_the_least_recently_used_is_forgotten() -> None:
    backends = tiny_backends([b"abc"])
    one = grammar("regex", "a", backends)
    cache = GrammarCache(GrammarLimits(cache_count=3, cache_bytes=10 * one.num_bytes))
    for name in "abc":
        cache.put(name, dataclasses.replace(one, digest=name))
    assert cache.get("a") is not None
    cache.put("d", "is no good")
    assert [cache.get(name) is not None for name in "abcd"] == [True, False, True, True]
    small = GrammarCache(GrammarLimits(cache_count=9, cache_bytes=2 * one.num_bytes))
    for name in "abc":
        small.put(name, one)
    assert len(small) == 2 and small.num_bytes == 2 * one.num_bytes and small.get("a") is None
    small.put("c", "is no good")
    assert small.num_bytes == one.num_bytes + len("is no good")


SLOW = {
    "repeated stars": ("regex", "([a-z ]+)?" * 40),
    "rules that may be nothing": ("ebnf", "root ::= " + "r? " * 40 + "\nr ::= [a-z ]+ | [a-y]*"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_wide(SLOW, ["repeated stars"]))
def test_what_xgrammar_follows_too_slowly_is_not_left_to_it(open_service: Open, name: str) -> None:
    service = open_service()
    kind, text = SLOW[name]
    found = outcome_of(service.request(spec(kind, text)))
    assert isinstance(found, Grammar) and found.backend == GrammarBackend.LLGUIDANCE
    forced = outcome_of(service.request(spec(kind, text, "xgrammar")))
    assert isinstance(forced, Failure) and "takes more" in forced.message
