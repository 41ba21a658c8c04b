"""`cadence transcribe`: recordings in, their words out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cadence.config.cli import Parser, add_engine_flags, checked_options
from cadence.core.errors import CadenceError, ConfigError, EngineDeadError
from cadence.entrypoints.cli.transcribe.screen import ProgressOfFile, ShownWords
from cadence.entrypoints.cli.transcribe.writing import FORMATS, format_of, output_paths, put, written
from cadence.entrypoints.speech.events import Transcript
from cadence.entrypoints.speech.requests import TRANSCRIBE, TRANSLATE, SpeechRequest, TranscriptionParams

if TYPE_CHECKING:
    from cadence.core.outputs import CompletionOutput
    from cadence.entrypoints.speech.service import Speech

AT_ONCE = 8  # files that are read side by side


def build_parser() -> Parser:
    about = "Write down what is said in recordings. Words come to a terminal as they are understood."
    parser = Parser("cadence transcribe", about, positional="FILE ...")
    parser.add_argument("files", nargs="+", metavar="FILE", help="wav, flac, mp3, ogg, m4a, mp4 or webm")
    group = parser.add_argument_group("speech")
    group.add_argument("--language", default="", metavar="NAME", help="of the speech, as en or english [found out]")
    group.add_argument("--translate", action="store_true", help="write it in English, whatever is spoken")
    group.add_argument("--prompt", default="", metavar="TEXT", help="text that comes before, or names that are spoken")
    group.add_argument("--temperature", type=float, default=0.0, metavar="N", help="[0, and more where that fails]")
    silence = "leave out silences of two seconds and more, where text would be made up"
    group.add_argument("--drop-silence", action="store_true", help=silence)
    group = parser.add_argument_group("output")
    group.add_argument("--output", default="", metavar="FILE", help="write there; for several files: a folder")
    words = "say when each word is said: in json, and a word at a time in srt and vtt"
    group.add_argument("--word-timestamps", action="store_true", help=words)
    group.add_argument("--format", choices=FORMATS, help="[by the name of --output, else text]")
    add_engine_flags(parser)
    return parser


@dataclass(frozen=True, slots=True)
class Job:
    file: Path
    output: Path | None  # None = stdout
    kind: str  # of FORMATS


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    kind = format_of(flags.format, flags.output)
    for file in flags.files:
        if not Path(file).is_file():
            raise ConfigError(f"{file}: no such file", "files")
    if flags.word_timestamps and kind == "text":
        raise ConfigError("--word-timestamps needs --format json, srt or vtt: text has no times", "word_timestamps")
    paths = output_paths(flags.output, flags.files, kind)
    jobs = [Job(Path(file), path, kind) for file, path in zip(flags.files, paths, strict=True)]
    params = TranscriptionParams(
        task=TRANSLATE if flags.translate else TRANSCRIBE,
        language=flags.language,
        prompt=flags.prompt,
        temperature=flags.temperature,
        word_times=flags.word_timestamps,
        drop_silence=flags.drop_silence,
    )
    options = checked_options(flags)
    return asyncio.run(_run(options, jobs, params))


async def _run(options: dict[str, object], jobs: list[Job], params: TranscriptionParams) -> int:
    from cadence.config.args import EngineArgs
    from cadence.entrypoints.async_llm import AsyncLLM
    from cadence.entrypoints.speech.open import open_speech

    llm = await AsyncLLM.start(EngineArgs(**options))  # type: ignore[arg-type]
    try:
        speech = open_speech(llm, _check_end)
        speech.check(params)
        return await transcribe_all(speech, jobs, params)
    finally:
        await llm.shutdown(drain=False)


async def transcribe_all(speech: Speech, jobs: list[Job], params: TranscriptionParams) -> int:
    """All files side by side; their transcripts are written in the files' order. -> exit status"""
    places = asyncio.Semaphore(AT_ONCE)
    tasks = [asyncio.ensure_future(_transcribed(speech, job, params, len(jobs) == 1, places)) for job in jobs]
    status = 0
    try:
        for job, task in zip(jobs, tasks, strict=True):
            try:
                transcript, is_shown = await task
            except EngineDeadError:
                raise
            except CadenceError as error:
                print(f"cadence transcribe: {job.file}: {error}", file=sys.stderr)
                status = 1
                continue
            if not is_shown:
                heading = f"{job.file}:\n" if len(jobs) > 1 and job.output is None and job.kind == "text" else ""
                put(heading + written(transcript, job.kind), job.output)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return status


async def _transcribed(
    speech: Speech, job: Job, params: TranscriptionParams, is_alone: bool, places: asyncio.Semaphore
) -> tuple[Transcript, bool]:
    """The transcript, and whether its words were shown as they came."""
    is_shown = is_alone and job.output is None and job.kind == "text" and sys.stdout.isatty()
    screen = ShownWords(sys.stdout) if is_shown else ProgressOfFile(job.file.name)
    async with places:
        async for event in speech.events(job.file.read_bytes, params, SpeechRequest(f"file-{job.file}-{id(job)}")):
            screen.take(event)
            if isinstance(event, Transcript):
                screen.end()
                return event, is_shown
    raise AssertionError("a transcript is the last of its events")


def _check_end(said: CompletionOutput) -> None:
    if said.finish_reason in ("abort", "error"):
        raise CadenceError(f"the engine ended it: {said.stop_reason or said.finish_reason}")
