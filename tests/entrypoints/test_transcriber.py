"""A recording through an engine that says what a test tells it to: what it is asked, and the events that come of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.outputs import CompletionOutput, Logprob, RequestOutput
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.speech.events import PartialText, SpokenSegment, SpokenText, Transcript, TranscriptProgress
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.requests import SpeechRequest, TranscriptionParams
from cadence.entrypoints.speech.transcriber import WhisperTranscriber
from tests.helpers.speech import MODEL, VOCABULARY, at
from tests.server.fakes_speech import sound

RATE = 16_000
END = VOCABULARY.end_of_text


class ScriptedEngine:
    """Each request gets the next list of tokens, a token at a time."""

    def __init__(self, *replies: list[int], finish_reason: str = "stop") -> None:
        self.config = SimpleNamespace(model=SimpleNamespace(encoder=SimpleNamespace(max_len=1500)))
        self.aligned: list[tuple[dict[str, Any], AlignmentSpec, str, dict[str, Any]]] = []
        self.asked: list[tuple[dict[str, Any], SamplingParams, str, dict[str, Any]]] = []
        self._replies = list(replies)
        self._finish = finish_reason

    async def generate(
        self, prompt: dict[str, Any], params: SamplingParams, request_id: str, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        self.asked.append((prompt, params, request_id, options))
        tokens = self._replies.pop(0)
        for place, token in enumerate(tokens):
            last = place == len(tokens) - 1
            logprobs = [{token: Logprob(-0.1), VOCABULARY.no_speech: Logprob(-9.0)}]
            said = CompletionOutput(0, "", [token], logprobs=logprobs, finish_reason=self._finish if last else None)
            yield RequestOutput(request_id, None, None, None, [said], last)

    async def align(self, prompt: dict[str, Any], spec: AlignmentSpec, request_id: str, **options: Any) -> np.ndarray:
        """Each token half a second after the one before."""
        self.aligned.append((prompt, spec, request_id, options))
        count = len(prompt["decoder_prompt"]) - spec.first
        matrix_np = np.full((count, spec.positions), -1.0, np.float32)
        for token in range(count):
            matrix_np[token, 25 * token : 25 * (token + 1)] = 3.0
        return matrix_np


def heard(engine: ScriptedEngine, seconds: float, params: TranscriptionParams) -> list[Any]:
    samples_np = np.random.default_rng(0).uniform(-0.1, 0.1, int(seconds * RATE)).astype(np.float32)

    async def collect() -> list[Any]:
        recordings = Recordings()
        transcriber = WhisperTranscriber(engine, MODEL, recordings, raise_failure)  # type: ignore[arg-type]
        transcriber.check(params)
        request = SpeechRequest("rec", priority=3, prompt_fields={"cache_salt": "salt"})
        try:
            return [event async for event in transcriber.transcribe(samples_np, params, request)]
        finally:
            recordings.close()

    return asyncio.run(collect())


def test_two_windows_give_their_segments_in_order() -> None:
    engine = ScriptedEngine([at(0), 1, at(10), at(10), 2, at(24), at(24), 3, END], [at(0), 3, at(6), END])
    events = heard(engine, 40.0, TranscriptionParams(language="English"))
    assert [event.text for event in events if isinstance(event, SpokenText)] == ["b", " c", " d"]
    segments = [event for event in events if isinstance(event, SpokenSegment)]
    assert [(one.number, one.segment.start, one.segment.end) for one in segments] == [
        (0, 0, 10),
        (1, 10, 24),
        (2, 24, 30),
    ]
    assert [event.done for event in events if isinstance(event, TranscriptProgress)] == [0.0, 24.0, 40.0]
    last = events[-1]
    assert isinstance(last, Transcript)
    assert (last.text, last.language, last.duration) == ("b c d", "en", 40.0)
    assert [segment.text for segment in last.segments] == [" b", " c", " d"]


def test_each_window_is_a_request_with_its_features() -> None:
    engine = ScriptedEngine([102], [at(0), 1, END])
    heard(engine, 3.0, TranscriptionParams(sampling={"repetition_penalty": 1.2}, seed=7))
    (language, found, first, options), (text, sampling, second, _) = engine.asked
    assert first == "rec-0" and second == "rec-1" and options["priority"] == 3
    content = text["encoder_prompt"]
    assert isinstance(content, EncoderInput)
    assert content.features_np.shape == (80, 3000) and content.length == 1500
    assert language["encoder_prompt"].digest == content.digest
    assert text["cache_salt"] == "salt"
    assert sampling.repetition_penalty == 1.2 and sampling.seed == 7
    assert found.allowed_token_ids == [102, 103] and found.repetition_penalty == 1.0


def test_partial_text_grows_and_is_followed_by_the_final_one() -> None:
    engine = ScriptedEngine([at(0), 1, 2, at(2), END])
    events = heard(engine, 3.0, TranscriptionParams(language="en", partial_text=True))
    assert [event.text for event in events if isinstance(event, PartialText)] == ["", " b", " b c", " b c"]
    assert [event.text for event in events if isinstance(event, SpokenText)] == ["b c"]


def test_words_are_asked_for_of_the_same_content_and_come_with_their_segments() -> None:
    engine = ScriptedEngine([at(0), 1, 2, at(2), END])
    events = heard(engine, 3.0, TranscriptionParams(language="en", word_times=True))
    ((prompt, spec, name, options),) = engine.aligned
    assert prompt["encoder_prompt"].digest == engine.asked[0][0]["encoder_prompt"].digest
    assert (prompt["cache_salt"], name, options["priority"]) == ("salt", "rec-1", 3)
    assert (spec.positions, spec.heads) == (150, MODEL.alignment_heads)
    (segment,) = [event.segment for event in events if isinstance(event, SpokenSegment)]
    assert [(word.word, word.start, word.end) for word in segment.words] == [(" b", 0.0, 0.5), (" c", 0.5, 1.0)]


def test_a_temperature_is_tried_alone() -> None:
    engine = ScriptedEngine([at(0), 1, END])
    heard(engine, 3.0, TranscriptionParams(language="en", temperature=0.7))
    assert engine.asked[0][1].temperature == 0.7


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (TranscriptionParams(language="klingon"), "language"),
        (TranscriptionParams(temperature=-1.0), "temperature"),
        (TranscriptionParams(sampling={"top_p": 3.0}), "top_p"),
    ],
)
def test_what_cannot_be_done_is_refused_before(params: TranscriptionParams, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        heard(ScriptedEngine(), 3.0, params)
    assert caught.value.field == field


def test_a_window_that_fails_is_no_transcript() -> None:
    with pytest.raises(ApiError):
        heard(ScriptedEngine([at(0), 1], finish_reason="abort"), 3.0, TranscriptionParams(language="en"))


def test_recordings_in_memory_are_bounded() -> None:
    """Two of a second do not fit beside each other: the second waits for the first, and a cancelled one holds none."""

    async def run() -> list[str]:
        recordings, order = Recordings(max_held_bytes=100_000), list[str]()
        first_in, let_go = asyncio.Event(), asyncio.Event()

        async def use(name: str, wait: bool) -> None:
            async with recordings.opened(lambda: sound(1.0, RATE)):
                order.append(name)
                if wait:
                    first_in.set()
                    await let_go.wait()

        first = asyncio.create_task(use("first", True))
        await first_in.wait()
        cancelled = asyncio.create_task(use("cancelled", False))
        second = asyncio.create_task(use("second", False))
        await asyncio.sleep(0.1)
        assert order == ["first"]
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        let_go.set()
        await asyncio.gather(first, second)
        assert recordings._held._held == 0
        recordings.close()
        return order

    assert asyncio.run(run()) == ["first", "second"]
