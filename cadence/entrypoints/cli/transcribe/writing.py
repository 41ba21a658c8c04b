"""Transcripts as text, subtitles or JSON, on stdout or in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cadence.core.errors import ConfigError
from cadence.entrypoints.speech.events import Transcript
from cadence.entrypoints.speech.subtitles import SUBTITLES, subtitles

FORMATS = ("text", *SUBTITLES, "json")
ENDINGS = {"text": ".txt", "srt": ".srt", "vtt": ".vtt", "json": ".json"}


def format_of(asked: str | None, output: str) -> str:
    """By its name, where none is asked for."""
    by_name = {ending: kind for kind, ending in ENDINGS.items()}
    return asked or by_name.get(Path(output).suffix, "text")


def output_paths(output: str, files: Sequence[str], kind: str) -> list[Path | None]:
    """Where each transcript goes; None = stdout. Several, and a folder that exists, get a file each in a folder."""
    if not output:
        return [None] * len(files)
    path = Path(output)
    if len(files) == 1 and not path.is_dir():
        return [path]
    names = [Path(file).stem + ENDINGS[kind] for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two of the files would be written to {path / twice}", "output")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {output} must be a folder for several files: {error.strerror}", "output") from None
    return [path / name for name in names]


def written(transcript: Transcript, kind: str) -> str:
    if kind in SUBTITLES:
        return subtitles(transcript.segments, kind)
    if kind == "json":
        return json.dumps(_fields(transcript), ensure_ascii=False) + "\n"
    return transcript.text + "\n"


def put(text: str, path: Path | None) -> None:
    if path is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", "output") from None


def _fields(transcript: Transcript) -> dict[str, Any]:
    segments = [
        {"start": round(one.start, 3), "end": round(one.end, 3), "text": one.text} for one in transcript.segments
    ]
    words = [
        {"word": word.word.strip(), "start": round(word.start, 3), "end": round(word.end, 3)}
        for one in transcript.segments
        for word in one.words
    ]
    return {
        "text": transcript.text,
        "task": transcript.task,
        "language": transcript.language,
        "duration": round(transcript.duration, 3),
        "segments": segments,
        **({"words": words} if words else {}),
    }
