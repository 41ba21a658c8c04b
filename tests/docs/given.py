"""What readers of a page have: models and recordings. Tiny models and tones stand for them."""

from __future__ import annotations

from pathlib import Path


def give(name: str, folder: Path) -> None:
    """Into `folder`, unless it is there."""
    if name == "speech":
        _speech(folder)
    elif name == "pictures":
        _pictures(folder)
    else:
        _translation(folder)


def _speech(folder: Path) -> None:
    from tests.helpers.recordings import encoded, tone, wav_file
    from tests.helpers.tiny_whisper import make_whisper

    if not (folder / "whisper-base").exists():
        make_whisper(folder / "whisper-base")
        (folder / "talk.wav").write_bytes(wav_file(tone(3.0)))
        (folder / "interview.flac").write_bytes(encoded("flac", tone(2.0)))


def _pictures(folder: Path) -> None:
    from tests.helpers.tiny_vision import make_vision
    from tests.media.pictures import picture

    if not (folder / "llava-1.5-7b").exists():
        make_vision("llava", folder / "llava-1.5-7b")
        (folder / "cat.png").write_bytes(picture())


def _translation(folder: Path) -> None:
    from tests.helpers.tiny_seq2seq import make_seq2seq

    if not (folder / "opus-mt-fr-en").exists():
        make_seq2seq("marian", folder / "opus-mt-fr-en")
