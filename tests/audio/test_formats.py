"""Transcripts in OpenAI's response formats."""

from __future__ import annotations

import json

import pytest
from openai.types.audio import TranscriptionVerbose

from cadence.audio.formats import FORMATS, Transcript, clock, written
from cadence.audio.segments import SpeechSegment, WordTime

WORDS = (WordTime(" Hello", 0.0, 0.5), WordTime(" there.", 0.6, 1.234))
TRANSCRIPT = Transcript(
    text="Hello there. Bye",
    language="en",
    seconds=3661.5,
    task="transcribe",
    segments=(
        SpeechSegment(0.0, 1.234, " Hello there.", (50364, 1, 50426), words=WORDS, average_logprob=-0.25),
        SpeechSegment(3599.9996, 3661.5, " Bye -->\n\n now", (2,), window_start=3570.0, temperature=0.2),
    ),
)


def test_srt() -> None:
    assert written(TRANSCRIPT, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,234\nHello there.\n\n2\n01:00:00,000 --> 01:01:01,500\nBye -> now\n\n"
    )


def test_vtt() -> None:
    assert written(TRANSCRIPT, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.234\nHello there.\n\n01:00:00.000 --> 01:01:01.500\nBye -> now\n\n"
    )


def test_text_and_json() -> None:
    assert written(TRANSCRIPT, "text") == "Hello there. Bye\n"
    assert json.loads(written(TRANSCRIPT, "json")) == {"text": "Hello there. Bye"}


def test_verbose_json_is_what_openais_client_reads() -> None:
    found = TranscriptionVerbose.model_validate_json(written(TRANSCRIPT, "verbose_json", ("segment", "word")))
    assert (found.language, found.duration, found.text) == ("english", 3661.5, TRANSCRIPT.text)
    assert [(each.id, each.seek, each.start, each.end) for each in found.segments or ()] == [
        (0, 0, 0.0, 1.234),
        (1, 357_000, 3600.0, 3661.5),
    ]
    assert [(each.word, each.start, each.end) for each in found.words or ()] == [
        ("Hello", 0.0, 0.5),
        ("there.", 0.6, 1.234),
    ]
    plain = json.loads(written(TRANSCRIPT, "verbose_json"))
    assert "words" not in plain
    assert plain["segments"][0]["avg_logprob"] == -0.25


def test_silence_has_every_format() -> None:
    empty = Transcript(text="", language="en", seconds=1.0, task="transcribe", segments=())
    assert [written(empty, form) for form in FORMATS[:4]] == ['{"text": ""}', "\n", "", "WEBVTT\n\n"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "00:00:00.000"), (59.9996, "00:01:00.000"), (360_000, "100:00:00.000"), (-1, "00:00:00.000")],
)
def test_clock(seconds: float, expected: str) -> None:
    assert clock(seconds, ".") == expected
