"""Recordings of every format become the samples they were made of, and bad ones one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from cadence.audio.decode import decode_audio, read_audio
from cadence.audio.errors import AudioError
from cadence.audio.limits import AudioLimits
from cadence.audio.resample import resample
from tests.helpers.recordings import KINDS, encoded, tone, wav_file


def hertz_of(samples_np: np.ndarray) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples_np))) * 16_000 / len(samples_np))


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_sound_at_16_khz(kind: str) -> None:
    samples_np = decode_audio(encoded(kind, tone(1.0, KINDS[kind][2])))
    assert samples_np.dtype == np.float32
    assert abs(len(samples_np) - 16_000) < 2_500  # coders add a frame or two
    middle_np = samples_np[4_000:12_000]
    assert hertz_of(middle_np) == pytest.approx(440, abs=3)
    assert np.abs(middle_np).max() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("code", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
def test_plain_wav_keeps_its_samples(code: int, bits: int) -> None:
    samples_np = tone(0.2)
    found_np = decode_audio(wav_file(samples_np, code=code, bits=bits))
    np.testing.assert_allclose(found_np, samples_np, atol=0.02 if bits == 8 else 1e-4)


def test_channels_are_averaged() -> None:
    stereo_np = np.stack([tone(0.2), np.zeros(3200, np.float32)], axis=1)
    np.testing.assert_allclose(decode_audio(wav_file(stereo_np)), tone(0.2) / 2, atol=1e-4)


def test_a_wav_file_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert len(decode_audio(wav_file(tone(0.2, 8_000), rate=8_000))) == 3_200
    with pytest.raises(AudioError, match=r"cadence-llm\[audio\]"):
        decode_audio(b"fLaC" + b"\0" * 100)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 44_099, 48_000, 96_000])
def test_resampling_keeps_what_both_rates_can_hold(rate: int) -> None:
    found_np = resample(tone(0.5, rate, 1000.0), rate, 16_000)
    assert len(found_np) == pytest.approx(8_000, abs=1)
    np.testing.assert_allclose(
        found_np[500:7_000], tone(0.5, 16_000, 1000.0)[500:7_000], atol=2e-3 if rate == 44_099 else 2e-4
    )


def test_resampling_drops_what_the_lower_rate_cannot_hold() -> None:
    found_np = resample(tone(0.5, 48_000, 9_000.0), 48_000, 16_000)
    assert np.abs(found_np[500:7_000]).max() < 1e-3


def test_a_wav_file_from_a_pipe_has_no_size() -> None:
    assert len(decode_audio(wav_file(tone(0.2), size=0xFFFFFFFF))) == 3_200


GOOD = tone(0.5)
BAD_FILES = {
    "is empty": b"",
    "no audio of a format": b"%PDF-1.7 and so on" * 10,
    "at least 0.1 seconds": wav_file(GOOD[:1]),
    "cut short: 4000 bytes": wav_file(GOOD)[:-4000],
    "samples are missing|is missing": wav_file(GOOD)[:40],
    "format chunk is cut short": wav_file(GOOD)[:16] + (4).to_bytes(4, "little") + b"\1\0\1\0data" + b"\0" * 8,
    "sample rate must be": wav_file(GOOD, rate=0),
    "sample rate must be 1000": wav_file(GOOD, rate=4_000_000_000 & 0xFFFFFFFF),
    "1 to 8 channels": wav_file(np.zeros((20, 9), np.float32)),
    "not numbers": wav_file(np.where(np.arange(4000) == 7, np.nan, 0.1), code=3, bits=32),
    "not numbers|cannot": wav_file(np.where(np.arange(4000) == 7, np.inf, 0.1), code=3, bits=32),
    "flac file is cut short": encoded("flac", np.random.default_rng(0).uniform(-1, 1, 64_000))[:40_000],
    "flac file cannot be decoded|at least": b"fLaC" + b"\0" * 400,
    "mp3 file cannot be decoded|at least": b"ID3" + b"\x01" * 400,
    "mov file cannot be decoded": b"\0\0\0\x18ftypM4A " + b"\xff" * 400,
    "no audio|cannot be decoded": b"\x1a\x45\xdf\xa3" + b"\0" * 400,
}


@pytest.mark.parametrize("sentence", BAD_FILES)
def test_a_bad_file_is_one_sentence(sentence: str) -> None:
    with pytest.raises(AudioError, match=sentence) as found:
        decode_audio(BAD_FILES[sentence])
    assert isinstance(found.value, ValueError)
    assert found.value.field == "file"
    assert str(found.value).endswith(".")


def test_limits_hold_before_and_while_decoding() -> None:
    short = AudioLimits(seconds=1.0)
    long_flac = encoded("flac", tone(2.0))
    with pytest.raises(AudioError, match="at most 1 seconds"):
        decode_audio(long_flac, short)
    with pytest.raises(AudioError, match="at most 1 seconds"):
        decode_audio(encoded("ogg", tone(2.0, 48_000)), short)  # its head does not say how long it is
    with pytest.raises(AudioError, match="at most 1 seconds"):
        decode_audio(wav_file(tone(2.0)), short)
    with pytest.raises(AudioError, match="at most 100 bytes"):
        decode_audio(long_flac, AudioLimits(num_bytes=100))


def test_ten_hours_of_silence_are_refused_by_their_head() -> None:
    """Samples in a flac head: 36 bits from bit 108 of STREAMINFO."""
    flac = bytearray(encoded("flac", np.zeros(16_000)))
    place = 8 + 13
    flac[place] = flac[place] & 0xF0
    flac[place + 1 : place + 5] = (36_000 * 16_000).to_bytes(4, "big")
    with pytest.raises(AudioError, match="at most 7200 seconds"):
        decode_audio(bytes(flac))


def test_a_playlist_opens_nothing(tmp_path: Path) -> None:
    """FFmpeg would follow the names in it."""
    (tmp_path / "other.wav").write_bytes(wav_file(GOOD))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path}/other.wav\n#EXT-X-ENDLIST\n"
    with pytest.raises(AudioError, match="no audio of a format"):
        decode_audio(playlist.encode())


def test_files_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_file(GOOD))
    assert len(read_audio(path)) == 8_000
    with pytest.raises(AudioError, match="no such file"):
        read_audio(tmp_path / "b.wav")
    with pytest.raises(AudioError, match="at most 100 bytes"):
        read_audio(path, AudioLimits(num_bytes=100))
