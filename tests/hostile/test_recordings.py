"""Bad recordings over HTTP: errors that name the file, memory bounded, and others served meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from cadence.audio.limits import AudioLimits
from cadence.entrypoints.server import make_state
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.service import Speech
from tests.helpers.recordings import KINDS, encoded, tone, wav_file
from tests.server.fakes_speech import TEXT, TellsTimes
from tests.server.helpers import FakeLLM, RunningApp, run_app, save_fake_model

LIMITS = AudioLimits(seconds=60.0)
MAX_BYTES = 1_000_000
MB = 2**20


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    model: Path = save_fake_model(tmp_path_factory.mktemp("fake_model"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_state, "open_speech", lambda *_: Speech(TellsTimes(), Recordings(LIMITS)))
        with run_app(FakeLLM(model), max_audio_bytes=MAX_BYTES) as running:
            yield running


def post(app: RunningApp, content: bytes, name: str = "a.wav") -> httpx.Response:
    with app.client() as client:
        return client.post("/v1/audio/transcriptions", files={"file": (name, content)}, timeout=240)


def unknown_length(flac: bytes) -> bytes:
    """Without the number of samples in its head: the length shows while it is decoded."""
    cut = bytearray(flac)
    cut[21] &= 0xF0
    cut[22:26] = bytes(4)
    return bytes(cut)


def lying(rate: int = 16_000, channels: int = 1) -> bytes:
    """A second of sound whose head says something else."""
    content = bytearray(wav_file(tone(1.0)))
    content[22:24] = channels.to_bytes(2, "little")
    content[24:28] = rate.to_bytes(4, "little")
    return bytes(content)


BAD = {
    "empty": b"",
    "no audio": b"%PDF-1.7 and so on, long enough to be looked at",
    "one sample": wav_file(tone(1 / 16_000)),
    "cut short": wav_file(tone(1.0))[:-8_000],
    "head alone": wav_file(tone(1.0))[:20],
    "more than is there": wav_file(tone(1.0), size=2**31),
    "0 Hz": lying(rate=0),
    "4 GHz": lying(rate=2**32 - 1),
    "no channel": lying(channels=0),
    "not a number": wav_file(np.full(16_000, np.nan, np.float32), code=3, bits=32),
    "infinite": wav_file(np.full(16_000, np.inf, np.float32), code=3, bits=32),
    "ten minutes of silence": encoded("flac", np.zeros(600 * 16_000, np.float32)),
    "ten minutes that do not say so": unknown_length(encoded("flac", np.zeros(600 * 16_000, np.float32))),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_recording_is_refused_by_name(app: RunningApp, name: str) -> None:
    answer = post(app, BAD[name])
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "file"


@pytest.mark.parametrize("kind", ["wav", *KINDS])
def test_damaged_files_break_nothing(app: RunningApp, kind: str) -> None:
    whole = wav_file(tone(0.5)) if kind == "wav" else encoded(kind, tone(0.5, KINDS[kind][2]))
    random_ = random.Random(kind)
    for _ in range(12):
        damaged = bytearray(whole)
        for _ in range(random_.randint(1, 20)):
            damaged[random_.randrange(len(damaged))] = random_.randrange(256)
        answer = post(app, bytes(damaged[: random_.randint(1, len(damaged))]), f"a.{kind}")
        assert answer.status_code in (200, 400), answer.text
        assert answer.status_code == 200 or answer.json()["error"]["param"] == "file"


def test_a_large_upload_takes_no_memory_and_others_are_served(app: RunningApp) -> None:
    """Four at once, each fifty times the limit: what is too much is read and dropped."""
    piece = bytes(MAX_BYTES // 20)  # one for all senders: what they hold is not the server's
    process, before = psutil.Process(), psutil.Process().memory_info().rss
    most = [before]
    answers: list[int] = []

    def body() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for _ in range(1000):
            yield piece
        yield b"\r\n--x--\r\n"

    def send() -> None:
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        try:
            with app.client() as client:
                answers.append(client.post("/v1/audio/transcriptions", content=body(), headers=headers).status_code)
        except httpx.TransportError:
            answers.append(413)  # cut off while it was still sending: the answer may be lost with the connection

    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()
    with app.client() as client:
        while any(sender.is_alive() for sender in senders):
            assert client.get("/livez", timeout=60).status_code == 200
            most.append(process.memory_info().rss)
    assert answers == [413] * 4
    assert max(most) - before < 32 * MB
    assert post(app, wav_file(tone(0.5))).json()["text"] == TEXT
