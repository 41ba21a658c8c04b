"""/v1/audio/transcriptions and /v1/audio/translations over a transcriber whose words are known."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from cadence.audio.activity import DEFAULT_ACTIVITY
from cadence.audio.limits import AudioLimits
from cadence.entrypoints.server import make_state
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.service import Speech
from tests.server.fakes_chat import MODEL, openai_client
from tests.server.fakes_speech import TEXT, WORDS, TellsTimes, sound
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve


@pytest.fixture
def teller(monkeypatch: pytest.MonkeyPatch) -> TellsTimes:
    """What servers hear with, from here on."""
    teller = TellsTimes()
    monkeypatch.setattr(make_state, "open_speech", lambda *_: Speech(teller, Recordings(AudioLimits())))
    return teller


@pytest.fixture
def app(teller: TellsTimes, serve: Serve) -> RunningApp:
    return serve()


def post(app: RunningApp, path: str = "transcriptions", file: bytes = b"", **fields: Any) -> httpx.Response:
    with app.client() as client:
        return client.post(f"/v1/audio/{path}", data=fields, files={"file": ("a.wav", file or sound())})


def test_the_official_client_gets_text_and_usage(app: RunningApp, teller: TellsTimes) -> None:
    client = openai_client(app)
    answer = client.audio.transcriptions.create(
        model=MODEL, file=("a.wav", sound()), language="en", prompt="Dickens.", temperature=0.3
    )
    assert answer.text == TEXT
    assert answer.usage.type == "duration" and answer.usage.seconds == 2  # type: ignore[union-attr]
    ((seconds, options, request),) = teller.asked
    assert seconds == pytest.approx(1.25, abs=0.01)
    assert (options.task, options.language, options.prompt) == ("transcribe", "en", "Dickens.")
    assert options.temperature == 0.3 and request.name.startswith("trsc-")


def test_translations_are_another_task(app: RunningApp, teller: TellsTimes) -> None:
    answer = openai_client(app).audio.translations.create(model=MODEL, file=("a.wav", sound()))
    assert answer.text == TEXT
    assert teller.asked[0][1].task == "translate"


def test_every_format(app: RunningApp) -> None:
    client = openai_client(app)

    def told(response_format: str) -> Any:
        return client.audio.transcriptions.create(
            model=MODEL,
            file=("a.wav", sound()),
            response_format=response_format,  # type: ignore[call-overload]
        )

    assert told("text") == TEXT + "\n"
    assert told("srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nIt was the best\n\n2\n00:00:01,500 --> 00:01:01,250\nof times.\n"
    )
    assert told("vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nIt was the best\n\n00:00:01.500 --> 00:01:01.250\nof times.\n"
    )
    verbose = told("verbose_json")
    assert (verbose.text, verbose.language, verbose.duration) == (TEXT, "en", 1.25)
    assert [(one.start, one.end, one.text, one.tokens) for one in verbose.segments] == [
        (0.0, 1.5, " It was the best", [0]),
        (1.5, 61.25, " of times.", [1]),
    ]


def test_streams_in_the_shapes_of_openai_and_vllm(app: RunningApp) -> None:
    client = openai_client(app)
    events = list(client.audio.transcriptions.create(model=MODEL, file=("a.wav", sound()), stream=True))
    assert [one.type for one in events] == ["transcript.text.delta", "transcript.text.delta", "transcript.text.done"]
    assert "".join(one.delta for one in events[:-1]) == events[-1].text == TEXT  # type: ignore[union-attr]
    chunks = [one.model_dump() for one in events]
    assert {chunk["object"] for chunk in chunks} == {"transcription.chunk"}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == TEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert post(app, stream="true").text.endswith("data: [DONE]\n\n")


def test_a_verbose_stream_has_segments(app: RunningApp) -> None:
    client = openai_client(app)
    stream = client.audio.transcriptions.create(
        model=MODEL, file=("a.wav", sound()), stream=True, response_format="verbose_json"
    )
    segments = [one for one in stream if one.type == "transcript.text.segment"]
    assert [(one.start, one.end, one.text) for one in segments] == [tuple(part) for part in WORDS]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "mp3"}, "response_format"),
        ({"temperature": "warm"}, "temperature"),
        ({"language": "xx"}, "language"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "letter", "response_format": "verbose_json"}, "timestamp_granularities[0]"),
        ({"include[]": "logprobs", "response_format": "verbose_json"}, "include"),
        ({"include[]": "everything"}, "include[0]"),
        ({"chunking_strategy": "now"}, "chunking_strategy"),
        ({"chunking_strategy": '{"type": "server_vad", "threshold": 7}'}, "chunking_strategy.threshold"),
        ({"chunking_strategy[threshold]": "0.5"}, "chunking_strategy.type"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
        ({"n": "2"}, "n"),
        ({"model": "other"}, "model"),
        ({"model": ["fake", "fake"]}, "model"),
        ({"prompt": "x" * 9000}, "prompt"),
    ],
)
def test_a_wrong_field_is_named(app: RunningApp, fields: dict[str, Any], param: str) -> None:
    answer = post(app, **fields)
    assert answer.status_code == (404 if fields.get("model") == "other" else 400), answer.text
    assert answer.json()["error"]["param"] == param


def test_unknown_fields_are_named_in_the_answer(app: RunningApp) -> None:
    strategy = '{"type": "server_vad", "eagerness": "low"}'
    answer = post(app, colour="blue", hotwords="Dickens", chunking_strategy=strategy)
    assert answer.status_code == 200
    assert answer.headers["x-cadence-ignored"] == "colour, hotwords, chunking_strategy.eagerness"


def test_words_have_times_where_they_are_asked_for(app: RunningApp, teller: TellsTimes) -> None:
    def told(*granularities: Any) -> Any:
        return openai_client(app).audio.transcriptions.create(
            model=MODEL,
            file=("a.wav", sound()),
            response_format="verbose_json",
            timestamp_granularities=list(granularities),
        )

    both, words, segments = told("word", "segment"), told("word"), told("segment")
    assert [params.word_times for _, params, _ in teller.asked] == [True, True, False]
    assert " ".join(word.word for word in both.words) == TEXT
    assert [(word.start, word.end) for word in both.words[-2:]] == [(1.5, 31.375), (31.375, 61.25)]
    assert (len(both.segments), words.segments, segments.words) == (2, None, None)
    assert words.words == both.words


def test_a_stream_has_the_words_of_each_segment(app: RunningApp) -> None:
    fields = {"stream": "true", "response_format": "verbose_json", "timestamp_granularities[]": "word"}
    segments = [one for one in told_events(post(app, **fields)) if one["type"] == "transcript.text.segment"]
    assert [[word["word"] for word in one["words"]] for one in segments] == [
        ["It", "was", "the", "best"],
        ["of", "times."],
    ]
    assert "words" not in told_events(post(app, stream="true", response_format="verbose_json"))[1]


def told_events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_logprobs_of_tokens_are_openais(app: RunningApp) -> None:
    create = openai_client(app).audio.transcriptions.create
    answer = create(model=MODEL, file=("a.wav", sound()), include=["logprobs"])
    assert [each.logprob for each in answer.logprobs] == [-0.25] * 4
    assert all(bytes(map(int, each.bytes)).decode(errors="replace") == each.token for each in answer.logprobs)
    events = list(create(model=MODEL, file=("a.wav", sound()), include=["logprobs"], stream=True))
    deltas = [each for one in events[:-1] for each in one.logprobs]  # type: ignore[union-attr]
    assert [each.token for each in deltas] == [each.token for each in answer.logprobs]
    assert [each.token for each in events[-1].logprobs] == [each.token for each in answer.logprobs]  # type: ignore[union-attr]
    assert create(model=MODEL, file=("a.wav", sound())).logprobs is None


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("auto", {}),
        ({"type": "server_vad"}, {}),
        (
            {"type": "server_vad", "threshold": 0.75, "prefix_padding_ms": 100, "silence_duration_ms": 500},
            {"above_noise_db": 18.0, "padding_seconds": 0.1, "min_silence_seconds": 0.5},
        ),
    ],
)
def test_long_silences_are_dropped_where_a_client_asks(
    app: RunningApp, teller: TellsTimes, strategy: Any, changes: dict[str, float]
) -> None:
    client = openai_client(app)
    client.audio.transcriptions.create(model=MODEL, file=("a.wav", sound()), chunking_strategy=strategy)
    post(app, chunking_strategy=strategy if strategy == "auto" else json.dumps(strategy))
    post(app)
    given = [params for _, params, _ in teller.asked]
    assert [params.drop_silence for params in given] == [True, True, False]
    assert given[0].activity == given[1].activity == replace(DEFAULT_ACTIVITY, **changes)


def test_a_form_is_needed_and_a_file_in_it(app: RunningApp) -> None:
    with app.client() as client:
        no_form = client.post("/v1/audio/transcriptions", json={"model": MODEL})
        no_file = client.post("/v1/audio/transcriptions", files={"model": (None, "fake")})
        two = client.post("/v1/audio/transcriptions", files=[("file", ("a", b"1")), ("file", ("b", b"2"))])
        headers = {"Content-Type": "multipart/form-data"}
        no_boundary = client.post("/v1/audio/transcriptions", content=b"--x", headers=headers)
    assert (no_form.status_code, no_file.status_code, no_boundary.status_code, two.status_code) == (415, 400, 400, 400)
    assert no_file.json()["error"]["param"] == "file"


def test_a_model_that_does_not_hear_says_so(serve: Serve) -> None:
    answer = post(serve())
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model" and "does not transcribe" in answer.text


def test_a_file_beyond_the_limit_is_413_and_names_the_limit(teller: TellsTimes, serve: Serve) -> None:
    app = serve(max_audio_bytes=100_000)
    answer = post(app, file=bytes(1_300_000))
    assert answer.status_code == 413 and "100000 bytes" in answer.json()["error"]["message"]
    assert not teller.asked


def test_what_is_wrong_with_a_recording_is_told_before_a_stream_begins(app: RunningApp) -> None:
    answer = post(app, file=b"RIFF of something else", stream="true")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "file"
    with pytest.raises(openai.BadRequestError):
        openai_client(app).audio.transcriptions.create(model=MODEL, file=("a.mp3", b"\0" * 4000), stream=True)
