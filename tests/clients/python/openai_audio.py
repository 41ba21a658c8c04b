"""The official Python client: transcriptions, translations, streams and formats of a recording.

Run as `python openai_audio.py SPEECH_URL RECORDING`; the server runs a tiny Whisper, whose words mean nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import openai
from exchange import check, expect, finish

SPEECH_URL, RECORDING = sys.argv[1], Path(sys.argv[2])
MODEL = "whisper"
client = openai.OpenAI(base_url=f"{SPEECH_URL}/v1", api_key="none", max_retries=0, timeout=120)
given: Any = {"model": MODEL, "language": "en", "temperature": 0.0}


def transcribed(**fields: Any) -> Any:
    with RECORDING.open("rb") as file:
        return client.audio.transcriptions.create(file=file, **given, **fields)


@check
def transcriptions() -> None:
    answer = transcribed(prompt="Dickens.", extra_body={"seed": 7, "repetition_penalty": 1.3})
    expect(isinstance(answer.text, str) and answer.usage.seconds == 3, answer)
    expect(transcribed().text == transcribed().text)


@check
def formats() -> None:
    text = transcribed(response_format="text")
    expect(text.strip() == transcribed(response_format="json").text, text)
    verbose = transcribed(response_format="verbose_json", timestamp_granularities=["segment"])
    expect(verbose.duration == 3.0 and verbose.language == "en" and verbose.task == "transcribe", verbose)
    expect(verbose.segments and all(0 <= one.start <= one.end <= 3.0 for one in verbose.segments), verbose)
    expect(transcribed(response_format="vtt").startswith("WEBVTT"))
    expect(" --> " in transcribed(response_format="srt"))


@check
def stream() -> None:
    events = list(transcribed(stream=True))
    text = "".join(event.delta for event in events if event.type == "transcript.text.delta")
    expect(events[-1].type == "transcript.text.done" and events[-1].text == text == transcribed().text, events)
    chunks = [event.model_dump() for event in events]  # as clients of vLLM read them
    expect("".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == text, chunks)


@check
def translations() -> None:
    with RECORDING.open("rb") as file:
        answer = client.audio.translations.create(model=MODEL, file=file, extra_body={"language": "de"})
    expect(isinstance(answer.text, str), answer)
    with RECORDING.open("rb") as file:
        verbose = client.audio.translations.create(model=MODEL, file=file, response_format="verbose_json")
    expect(verbose.duration == 3.0 and verbose.segments is not None, verbose)


@check
async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=f"{SPEECH_URL}/v1", api_key="none", max_retries=0) as other:
        events: Any = await other.audio.transcriptions.create(file=RECORDING, stream=True, **given)
        kinds = [event.type async for event in events]
    expect(kinds[-1] == "transcript.text.done", kinds)


@check
def errors() -> None:
    for fields, param in (
        ({"file": ("a.wav", b"RIFF and then nothing")}, "file"),
        ({"file": RECORDING, "language": "klingon"}, "language"),
        ({"file": RECORDING, "temperature": -1}, "temperature"),
    ):
        try:
            client.audio.transcriptions.create(**{"model": MODEL, **fields})  # type: ignore[call-overload]
            raise AssertionError(f"a wrong {param} was answered")
        except openai.BadRequestError as error:
            expect(error.param == param, error)


finish()
