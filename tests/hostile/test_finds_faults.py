"""The generator can fail: it finds a validator that is taken out, an engine narrower than the front, and leaks."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import create_model

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server.app import create_app
from cadence.entrypoints.server.protocol.completions import CompletionBody
from tests.hostile.bounds import CI_MARGIN, Bounds
from tests.hostile.bystander import Bystander
from tests.hostile.case import Case
from tests.hostile.cases import Cases
from tests.hostile.health import Health, Target
from tests.hostile.report import Report
from tests.hostile.sender import Sender
from tests.server.helpers import FakeLLM, run_app, save_fake_model

CI_REQUESTS = 2300


class NarrowLLM(FakeLLM):
    """An engine that cannot take what the front lets through."""

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        if params.stop_token_ids:
            raise OverflowError("stop_token_ids")
        async for output in super().generate(prompt, params, request_id, **options):
            yield output


class TalkativeLLM(FakeLLM):
    """An engine that tells users about its insides."""

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        if params.seed is not None:
            raise InvalidRequestError("TypeError: 'NoneType' object is not subscriptable", "seed")
        async for output in super().generate(prompt, params, request_id, **options):
            yield output


@pytest.fixture(scope="module")
def fake_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fake_model(tmp_path_factory.mktemp("fake_model"))


@pytest.fixture(scope="module")
def cases(fake_model: Path) -> list[Case]:
    llm: Any = FakeLLM(fake_model)
    return list(Cases(create_app(llm, ServeOptions()).openapi(), seed=1).small(CI_REQUESTS))


def attack(llm: FakeLLM, cases: list[Case], field: str) -> Report:
    """The generated cases that set `field`, against an application over `llm`."""
    report = Report(seed=1)
    with run_app(llm, served_model_name=["tiny"]) as app:
        chosen = [case for case in cases if f'"{field}":'.encode() in case.request.body]
        Sender(app.url, Bounds(margin=CI_MARGIN), report).send(chosen)
    assert report.num_requests > 5
    return report


def found(report: Report, words: str, field: str) -> bool:
    return any(words in one.what and field in one.cases[0].request.body.decode("latin-1") for one in report.findings)


def test_finds_a_validator_that_was_taken_out(
    fake_model: Path, cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not found(attack(FakeLLM(fake_model), cases, "stream_options"), "status 500", "stream_options")
    loose = create_model("Loose", __base__=CompletionBody, stream_options=(Any, None))
    monkeypatch.setattr(CompletionBody, "__pydantic_validator__", loose.__pydantic_validator__)
    assert found(attack(FakeLLM(fake_model), cases, "stream_options"), "status 500", "stream_options")


def test_finds_an_engine_narrower_than_the_front(fake_model: Path, cases: list[Case]) -> None:
    assert not found(attack(FakeLLM(fake_model), cases, "stop_token_ids"), "status 500", "stop_token_ids")
    assert found(attack(NarrowLLM(fake_model), cases, "stop_token_ids"), "status 500", "stop_token_ids")


def test_finds_internal_text_in_a_message(fake_model: Path, cases: list[Case]) -> None:
    assert not found(attack(FakeLLM(fake_model), cases, "seed"), "internal text", "seed")
    assert found(attack(TalkativeLLM(fake_model), cases, "seed"), "internal text", "seed")


class BlockingLLM(FakeLLM):
    """Holds up the event loop when it is asked for nine tokens."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.num_outputs = 0

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncIterator[RequestOutput]:
        if params.max_tokens == 9:
            time.sleep(1.5)
        async for output in super().generate(prompt, params, request_id, **options):
            self.num_outputs += 1
            yield output


def test_the_bystander_sees_a_frozen_loop(fake_model: Path) -> None:
    llm = BlockingLLM(fake_model, delay=0.01)
    with run_app(llm) as app, contextlib.closing(Bystander(app.url)) as bystander, app.client() as client:
        wait_for_outputs(llm)
        assert not [sight for sight in bystander.go() if sight.breaks(Bounds(margin=CI_MARGIN))]
        broken: set[str] = set()
        ends = time.monotonic() + 240
        while broken != {"livez", "gap"} and time.monotonic() < ends:  # on a busy machine it may look away
            wait_for_outputs(llm)
            client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 9})
            wait_for_outputs(llm)
            broken |= {sight.kind for sight in (*bystander.pause(), *bystander.go()) if sight.breaks(Bounds())}
        assert broken == {"livez", "gap"}


def wait_for_outputs(llm: BlockingLLM) -> None:
    """A stream runs."""
    enough = llm.num_outputs + 10
    while llm.num_outputs < enough:
        time.sleep(0.01)


def test_what_a_server_keeps_is_seen(fake_model: Path) -> None:
    """The application runs in this process: what the test takes, the server seems to keep."""
    quick = Bounds(settle_s=0.1, rss_factor=1.0)
    with run_app(FakeLLM(fake_model)) as app, contextlib.ExitStack() as stack:
        health = Health(Target(app.url, os.getpid()), quick)
        assert not [problem for problem in health.check() if problem.startswith("front")]
        kept: list[np.ndarray] = []
        for _ in range(quick.extra_descriptors + 6):
            stack.enter_context(Path("/dev/null").open())
        ends = threading.Event()
        for _ in range(quick.extra_threads + 6):
            threading.Thread(target=ends.wait, daemon=True).start()
        told = ""
        while " MB, at the start" not in told and len(kept) < 8:  # earlier tests may give memory back meanwhile
            kept.append(np.ones(2**25))  # 256 MB
            told += " ".join(health.check())
        ends.set()
        for word in (" MB, at the start", "descriptors", "threads"):
            assert word in told


def test_another_answer_is_seen(fake_model: Path) -> None:
    llm = FakeLLM(fake_model)
    with run_app(llm) as app:
        health = Health(Target(app.url), Bounds(settle_s=0.1))
        llm.script = "something else"
        assert any("canary" in problem for problem in health.check())


def test_a_trace_in_the_log_is_seen(fake_model: Path) -> None:
    log = ["all is well\n"]
    with run_app(FakeLLM(fake_model)) as app:
        health = Health(Target(app.url, log=lambda: "".join(log)), Bounds(settle_s=0.1))
        log.append('Traceback (most recent call last):\n  File "x.py", line 1, in f\n    g()\nKeyError: 7\nINFO\n')
        assert any("KeyError: 7" in problem for problem in health.check())
        assert not any("KeyError: 7" in problem for problem in health.check())
