"""`cadence transcribe` over a transcriber whose words are known."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.transcribe import command
from cadence.entrypoints.cli.transcribe.command import Job, transcribe_all
from cadence.entrypoints.cli.transcribe.writing import format_of, output_paths
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.requests import TranscriptionParams
from cadence.entrypoints.speech.service import NullTranscriber, Speech
from tests.server.fakes_speech import TEXT, TellsTimes, sound

PLAIN = TranscriptionParams()


def transcribe(jobs: list[Job], params: TranscriptionParams = PLAIN) -> int:
    async def run() -> int:
        return await transcribe_all(Speech(TellsTimes(), Recordings()), jobs, params)

    return asyncio.run(run())


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "one.wav", tmp_path / "two.wav"]
    for number, path in enumerate(found):
        path.write_bytes(sound(1.0 + number))
    return found


def test_one_file_is_its_text_and_progress_goes_to_stderr(
    files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe([Job(files[0], None, "text")]) == 0
    out, err = capsys.readouterr()
    assert out == TEXT + "\n"
    assert err.splitlines() == ["one.wav: 0 of 1 s", "one.wav: 1 of 1 s"]


def test_a_terminal_gets_the_words_as_they_come(
    files: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    transcribe([Job(files[0], None, "text")])
    out, err = capsys.readouterr()
    assert out == TEXT + "\n" and err == ""


def test_words_have_times_in_json_and_are_subtitles_one_by_one(
    files: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    timed = TranscriptionParams(word_times=True)
    transcribe([Job(files[0], None, "json")], timed)
    words = json.loads(capsys.readouterr().out)["words"]
    assert " ".join(word["word"] for word in words) == TEXT
    assert words[0] == {"word": "It", "start": 0.0, "end": 0.375}
    transcribe([Job(files[0], None, "srt")], timed)
    assert capsys.readouterr().out.startswith("1\n00:00:00,000 --> 00:00:00,375\nIt\n\n2\n")
    transcribe([Job(files[0], None, "json")])
    assert "words" not in json.loads(capsys.readouterr().out)
    with pytest.raises(ConfigError, match="word-timestamps needs"):
        command.run([str(files[0]), "--word-timestamps"])


def test_several_files_are_written_in_their_order(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe([Job(path, None, "text") for path in files]) == 0
    assert capsys.readouterr().out == f"{files[0]}:\n{TEXT}\n{files[1]}:\n{TEXT}\n"


def test_a_file_that_is_no_recording_fails_alone(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    files[0].write_text("a letter, not a recording, and long enough to be looked at")
    assert transcribe([Job(path, None, "text") for path in files]) == 1
    out, err = capsys.readouterr()
    assert out == f"{files[1]}:\n{TEXT}\n"
    assert f"cadence transcribe: {files[0]}: The file is no audio" in err


def test_files_of_every_format(files: list[Path], tmp_path: Path) -> None:
    for kind, name in (("srt", "a.srt"), ("vtt", "a.vtt"), ("json", "a.json"), ("text", "a.txt")):
        transcribe([Job(files[0], tmp_path / name, kind)])
    assert (tmp_path / "a.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:01,500\nIt was")
    assert (tmp_path / "a.vtt").read_text().startswith("WEBVTT\n\n00:00:00.000 -->")
    assert (tmp_path / "a.txt").read_text() == TEXT + "\n"
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["text"] == TEXT and [one["end"] for one in told["segments"]] == [1.5, 61.25]


def test_where_transcripts_go(tmp_path: Path) -> None:
    assert (
        format_of(None, "talk.srt") == "srt" and format_of("vtt", "talk.srt") == "vtt" and format_of(None, "") == "text"
    )
    assert output_paths("", ["a.wav", "b.wav"], "text") == [None, None]
    assert output_paths(str(tmp_path / "x.srt"), ["a.wav"], "srt") == [tmp_path / "x.srt"]
    folder = tmp_path / "all"
    assert output_paths(str(folder), ["a.wav", "c/b.mp3"], "vtt") == [folder / "a.vtt", folder / "b.vtt"]
    with pytest.raises(ConfigError, match="two of the files"):
        output_paths(str(folder), ["a.wav", "a.mp3"], "vtt")


def test_mistakes_are_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        command.run([str(tmp_path / "missing.wav"), "--model", "nothing"])


def test_a_model_that_does_not_hear_says_so() -> None:
    with pytest.raises(Exception, match="does not transcribe"):
        NullTranscriber().check(TranscriptionParams())
