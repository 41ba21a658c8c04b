"""When words are said, as an engine finds it that dies on the way: the transcript is whole, and the same."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from cadence.config.args import EngineArgs
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.speech.events import Transcript
from cadence.entrypoints.speech.open import open_speech
from cadence.entrypoints.speech.requests import SpeechRequest, TranscriptionParams
from tests.helpers.recordings import tone, wav_file
from tests.helpers.tiny_whisper import make_whisper

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 300}
NOISE = np.random.default_rng(1).uniform(-0.3, 0.3, 20_000).astype(np.float32)
RECORDING = wav_file(np.concatenate([tone(31.0, hertz=300.0), NOISE]))  # of two windows
# With a temperature of its own a window has one text: the one that the engine dies in counts.
PARAMS = TranscriptionParams(language="en", word_times=True, temperature=0.4)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, runner: asyncio.Runner) -> Iterator[AsyncLLM]:
    directory = make_whisper(tmp_path_factory.mktemp("whisper"))
    llm = runner.run(AsyncLLM.start(EngineArgs(model=str(directory), **OPTIONS)))
    yield llm
    runner.run(llm.shutdown(drain=False))


@pytest.fixture(scope="module")
def expected(llm: AsyncLLM, runner: asyncio.Runner) -> dict[str, Any]:
    transcript = runner.run(transcript_of(llm, "undisturbed"))
    timed = [len(segment["words"]) for segment in transcript["segments"]]
    assert len(timed) > 1 and all(timed)
    return transcript


async def transcript_of(llm: AsyncLLM, name: str) -> dict[str, Any]:
    def check_end(said: Any) -> None:
        assert said.finish_reason in ("stop", "length")

    events = open_speech(llm, check_end).events(lambda: RECORDING, PARAMS, SpeechRequest(name))
    found = [event async for event in events]
    assert isinstance(found[-1], Transcript)
    return asdict(found[-1])


def kill(llm: AsyncLLM) -> None:
    os.kill(llm.engine_pid, signal.SIGKILL)


async def when_a_text_is_written(llm: AsyncLLM) -> None:
    """Stopped first, until all that it said was read: the text that it dies in has tokens, and lacks some."""
    while True:
        while not any(len(entry.token_ids) > 2 for entry in llm._supervisor._logic.journal):
            await asyncio.sleep(0.0005)
        os.kill(llm.engine_pid, signal.SIGSTOP)
        await asyncio.sleep(0.05)
        if any(len(entry.token_ids) > 2 for entry in llm._supervisor._logic.journal):
            return kill(llm)
        os.kill(llm.engine_pid, signal.SIGCONT)


async def transcript_beside(llm: AsyncLLM, name: str, disturbing: Any) -> dict[str, Any]:
    disturbed = asyncio.ensure_future(disturbing(llm))
    transcript = await transcript_of(llm, name)
    await disturbed
    return transcript


def test_words_are_the_same_where_the_engine_dies_in_a_text(
    llm: AsyncLLM, runner: asyncio.Runner, expected: dict[str, Any]
) -> None:
    restarts = llm.num_restarts
    assert runner.run(transcript_beside(llm, "in a text", when_a_text_is_written)) == expected
    assert llm.num_restarts == restarts + 1


@pytest.mark.parametrize("asked", [False, True], ids=["before words are asked for", "while they are"])
def test_words_are_the_same_where_the_engine_dies_after_a_text(
    llm: AsyncLLM, runner: asyncio.Runner, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """What the encoder had made of the sound is gone with it. The engine is stopped first, so that what it is asked
    lies before it, unread, when it is killed."""
    align, times = llm.align, 0

    async def disturbed(prompt: Any, spec: AlignmentSpec, request_id: str, **given: Any) -> np.ndarray:
        nonlocal times
        times += 1
        if times > 1:
            return await align(prompt, spec, request_id, **given)
        if not asked:
            kill(llm)
            return await align(prompt, spec, request_id, **given)
        os.kill(llm.engine_pid, signal.SIGSTOP)
        answer = asyncio.ensure_future(align(prompt, spec, request_id, **given))
        while not any(entry.in_engine for entry in llm._supervisor._logic.journal):
            await asyncio.sleep(0.001)
        kill(llm)
        return await answer

    monkeypatch.setattr(llm, "align", disturbed)
    restarts = llm.num_restarts
    assert runner.run(transcript_of(llm, f"asked {asked}")) == expected
    assert (times, llm.num_restarts) == (2, restarts + 1)
