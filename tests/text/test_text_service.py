"""Long texts and templates of strangers are worked on in a process that may be killed: the caller only hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadence.config.engine_config import TokenizerConfig
from cadence.config.reference import ModelFiles
from cadence.core.errors import BusyError, InvalidRequestError
from cadence.text.chat_template import ChatRequest
from cadence.text.hf_directory import load_tokenizer
from cadence.text.service import text_client, text_service
from cadence.text.service.text_process import NICENESS
from cadence.text.service.text_service import LONG_IDS, LONG_TEXT, PLAIN, SHORT_TEXT, Encoding, TextLimits, TextService
from cadence.text.tokenizer import Tokenizer
from tests.helpers import tiny_tokenizers

TEMPLATE = "{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson }}"
HI = ChatRequest([{"role": "user", "content": "hi"}])
PATIENCE_S = 250.0  # on a busy machine anything may take its time; a test has 300 s
PATIENT = TextLimits(memory_bytes=128 * 2**20, template_s=PATIENCE_S, text_s=PATIENCE_S)
STRICT = replace(PATIENT, template_s=0.4)
SLOW = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"

Body = Callable[[TextService, Tokenizer], Awaitable[None]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text_service")
    return tiny_tokenizers.save(tiny_tokenizers.byte_level(), folder, chat_template=TEMPLATE)


@pytest.fixture
def run(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for module, name in ((text_client, "START_S"), (text_client, "PATIENCE_S"), (text_service, "LEAST_S")):
        monkeypatch.setattr(module, name, PATIENCE_S)

    def start(body: Body, *, escape: bool = False, context: int = 200_000, limits: TextLimits = PATIENT) -> None:
        tokenizer = load_tokenizer(directory)
        config = TokenizerConfig(ModelFiles("tiny", directory, None), False, "", escape)

        async def main() -> None:
            service = TextService(tokenizer, config, context, limits)
            try:
                async with asyncio.timeout(240):  # it hangs
                    await body(service, tokenizer)
            finally:
                await service.close()

        asyncio.run(main())

    return start


async def refused(work: Awaitable[Any], field: str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        await work
    assert caught.value.field == field
    return str(caught.value)


@pytest.mark.parametrize("escape", [False, True])
def test_the_same_tokens_wherever_they_are_made(run: Callable[..., None], escape: bool) -> None:
    async def body(service: TextService, tokenizer: Tokenizer) -> None:
        for count in (3, SHORT_TEXT // 2, LONG_TEXT // 2):
            text = "fox 東京<|turn|>" * max(1, count // 4)
            for special in (True, False):
                found = await service.encode(text, Encoding(special))
                assert found.ids == tokenizer.encode(text, special) and found.total == len(found.ids)
            cut = await service.encode(text, Encoding(kept=(-7, None)))
            assert cut.ids == tokenizer.encode(text)[-7:] and cut.total == len(tokenizer.encode(text))
            chat = ChatRequest([{"role": "user", "content": text, "n": 2**70}] * 3, [{"name": "é"}])
            here = await service.chat(chat, Encoding(False), "", True)
            there = await service.chat(chat, Encoding(False), TEMPLATE, False)
            assert here == there and here.text == tokenizer.render_chat(chat)
            assert (here.ids == tokenizer.encode(here.text, False)) is not escape
        for count in (10, LONG_IDS + 1):
            ids = [300, 2, 301] * (count // 3)
            assert await service.decode(ids, False) == tokenizer.decode(ids, False)
            assert await service.decode(ids, True) == tokenizer.decode(ids, True)

    run(body, escape=escape, limits=TextLimits())


def test_short_texts_need_no_process(run: Callable[..., None]) -> None:
    async def body(service: TextService, _: Tokenizer) -> None:
        await service.encode("a" * LONG_TEXT)
        await service.decode([300] * LONG_IDS)
        await service.chat(HI, PLAIN, "", True)
        assert service._texts.pid == service._templates.pid == 0

    run(body)


def test_what_cannot_fit_is_refused_unread(run: Callable[..., None]) -> None:
    async def body(service: TextService, _: Tokenizer) -> None:
        assert "at most 99" in await refused(service.encode("a" * 15_000_000, Encoding(field="input")), "input")
        assert service._texts.pid == 0
        long = ChatRequest([{"role": "user", "content": "a" * 1_000_000}])
        for trusted in (True, False):
            error = await refused(service.chat(long, Encoding(field="messages"), TEMPLATE, trusted), "messages")
            assert "messages has" in error and "at most 99" in error
        assert (await service.encode("a" * 100_000, Encoding(kept=(None, 5)))).total > 5

    run(body, context=100)


RUNAWAYS = {
    "nested loops": (SLOW, "took more than 0.4 s"),
    "large range": ("{{ range(10 ** 9) | list }}", "Range too big"),
    "large sort": (
        "{% for i in range(99) %}{% set x = (range(99999) | list * 20) | sort %}{% endfor %}",
        "took more than|used more than",
    ),
    "repeated text": ("{{ 'a' * 10 ** 9 }}", "was stopped"),
    "wide format": ("{{ '%0999999999d' % 1 }}", "was stopped"),
    "large power": ("{{ (7 ** 9999999) % 10 }}", "took more than 0.4 s"),
    "large slices": (
        "{% set ns = namespace(x=[]) %}"
        "{% for i in range(999) %}{% set ns.x = [ns.x, (range(99999)[:] | list) * 40] %}{% endfor %}",
        "used more than 128 MiB",
    ),
    "large join": ("{{ (['x' * 9999999] * 9) | join }}", "was stopped|used more than"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too deeply|took more"),
    "long output": ("{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "wrote more|used more|took more"),
    "many words": ("{{ ('a ' * 9999999) | wordcount }}{{ ('a ' * 9999999).split() | length }}", "took more|used more"),
    "deep out": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
}


@pytest.mark.parametrize("limits", [STRICT, PATIENT], ids=["of time", "of memory"])
def test_templates_of_requests_end_within_their_limits(run: Callable[..., None], limits: TextLimits) -> None:
    """All in one process or its successors, in which ordinary ones work."""
    chosen = {name: case for name, case in RUNAWAYS.items() if ("took more" in case[1]) == (limits is STRICT)}
    assert len(chosen) > 4

    async def body(service: TextService, tokenizer: Tokenizer) -> None:
        for name, (template, says) in chosen.items():
            error = await refused(service.chat(HI, PLAIN, template, False), "chat_template")
            assert any(part in error for part in says.split("|")), (name, error)
        if limits is PATIENT:  # in so short a time a busy machine may do nothing
            assert (await service.chat(HI, PLAIN, "{{ messages[0].content }}", False)).ids == tokenizer.encode("hi")
        assert service._texts.pid == 0

    run(body, limits=limits)


def test_texts_beyond_their_limits(run: Callable[..., None]) -> None:
    async def body(service: TextService, _: Tokenizer) -> None:
        cut = Encoding(kept=(-5, None))
        assert "of memory" in await refused(service.encode("a.1 " * 1_000_000, cut), "prompt")
        assert len((await service.encode("a.1 " * 20_000, cut)).ids) == 5
        assert "at most 1000000" in await refused(service.encode("\t" * 1_000_001, Encoding(kept=(0, None))), "prompt")

    limits = replace(PATIENT, memory_bytes=600 * 2**20)
    run(body, limits=limits)


def test_a_job_nobody_waits_for_makes_room(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_client, "ABANDONED_S", 0.1)

    async def body(service: TextService, _: Tokenizer) -> None:
        await service.chat(HI, PLAIN, "{{ 1 }}", False)
        first = service._templates.pid
        running = asyncio.create_task(service.chat(HI, PLAIN, SLOW, False))
        waiting = asyncio.create_task(service.chat(HI, PLAIN, SLOW, False))
        while service._templates._running is None:
            await asyncio.sleep(0.01)
        for task in (running, waiting):
            task.cancel()
        assert (await service.chat(HI, PLAIN, "{{ 2 }}", False)).text == "2"
        assert service._templates.pid != first

    run(body)


def test_the_queue_is_bounded_and_in_order(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_client, "MAX_WAITING", 4)

    async def body(service: TextService, _: Tokenizer) -> None:
        ended: list[int] = []

        async def job(number: int) -> None:
            await service.chat(HI, PLAIN, "{{ messages }}", False)
            ended.append(number)

        jobs = [asyncio.create_task(job(number)) for number in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await service.chat(HI, PLAIN, "{{ 1 }}", False)
        await asyncio.gather(*jobs)
        assert ended == [0, 1, 2, 3]
        await service.chat(HI, PLAIN, "{{ 1 }}", False)

    run(body)


def test_nobody_waits_for_ever_for_a_turn(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_client, "PATIENCE_S", 0.1)

    async def body(service: TextService, _: Tokenizer) -> None:
        async with service._texts._turn:
            with pytest.raises(BusyError, match="try again"):
                await service.encode("a" * (LONG_TEXT + 1))
        while service._texts._tasks:  # it leaves the queue
            await asyncio.sleep(0)

    run(body)


def test_patience_is_for_the_turn_not_for_the_job(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has its turn is judged by its own limits, however long its process takes to start."""
    monkeypatch.setattr(text_client, "PATIENCE_S", 0.01)

    async def body(service: TextService, _: Tokenizer) -> None:
        assert (await service.chat(HI, PLAIN, "{{ 1 }}", False)).text == "1"

    run(body)


def test_what_cannot_fit_is_refused_while_others_are_tokenised(run: Callable[..., None]) -> None:
    async def body(service: TextService, _: Tokenizer) -> None:
        long = ChatRequest([{"role": "user", "content": "word " * 100_000}])
        async with service._texts._turn:  # as if a text were being tokenised
            waiting = asyncio.create_task(service.encode("a" * (LONG_TEXT + 1), Encoding(kept=(0, 5))))
            while not service._texts.is_busy:
                await asyncio.sleep(0)
            assert "at least" in await refused(service.chat(long, Encoding(field="messages"), "", True), "messages")
            assert not waiting.done()
        await waiting

    run(body, context=1000, limits=TextLimits())


def test_a_start_that_takes_too_long_is_tried_again_by_the_next(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(service: TextService, _: Tokenizer) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(text_client, "START_S", 0.001)
            with pytest.raises(BusyError, match="try again"):
                await service.chat(HI, PLAIN, "{{ 1 }}", False)
        assert (await service.chat(HI, PLAIN, "{{ 2 }}", False)).text == "2"

    run(body)


def test_a_process_that_is_killed_is_replaced(run: Callable[..., None]) -> None:
    async def body(service: TextService, _: Tokenizer) -> None:
        await service.chat(HI, PLAIN, "{{ 1 }}", False)
        os.kill(service._templates.pid, signal.SIGKILL)
        assert (await service.chat(HI, PLAIN, "{{ 2 }}", False)).text == "2"

    run(body)


def test_it_leaves_with_its_parent_and_knows_no_secrets(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-1")
    monkeypatch.setenv("VLLM_API_KEY", "secret-2")
    pids: list[int] = []

    async def body(service: TextService, _: Tokenizer) -> None:
        await service.chat(HI, PLAIN, "{{ 1 }}", False)
        pids.append(service._templates.pid)
        proc = Path(f"/proc/{pids[0]}")
        if proc.is_dir():
            assert b"secret" not in (proc / "environ").read_bytes()
            assert len(list((proc / "fd").iterdir())) <= 6
            assert os.getpriority(os.PRIO_PROCESS, pids[0]) == min(19, os.nice(0) + NICENESS)
        child = service._templates._child
        assert child is not None
        child._writer.close()  # as when the parent is gone
        while child._child.status is None:
            await asyncio.sleep(0.01)

    run(body)
