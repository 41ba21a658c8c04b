"""Recordings, pictures and videos that scripts for vLLM name: looked for on this machine, never fetched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.audio.decode import RATE, decode_audio
from cadence.audio.resample import resample
from cadence.config import env
from cadence.core.errors import ModelNotFoundError
from cadence.media.library import pillow
from cadence.media.limits import DEFAULT_LIMITS
from cadence.media.video import Sampling, Video
from cadence.media.video_decode import decode_video

ASSETS = "VLLM_ASSETS_CACHE"
RECORDINGS = (".ogg", ".wav", ".flac", ".mp3", ".m4a", ".webm")
PICTURES = (".jpg", ".png", ".jpeg", ".webp")
VIDEOS = (".mp4", ".mkv", ".webm", ".mov")
_PUBLIC = "vllm_public_assets"
FOLDERS = ("", _PUBLIC, f"{_PUBLIC}/multimodal_asset", f"{_PUBLIC}/vision_model_images", "video-example-data")
_VIDEO_FILES = {"baby_reading": "sample_demo_1"}  # names that differ from those of their files


@dataclass(frozen=True)
class AudioAsset:
    name: str  # winning_call, mary_had_lamb, or that of a file of yours, without its ending

    @property
    def audio_and_sample_rate(self) -> tuple[npt.NDArray[np.float32], int]:
        """Samples [n] of one channel, and how many a second has."""
        return decode_audio(self.get_local_path().read_bytes()), RATE

    def get_local_path(self) -> Path:
        return found(self, self.name, RECORDINGS)


@dataclass(frozen=True)
class ImageAsset:
    name: str  # stop_sign, cherry_blossom, or that of a file of yours, without its ending

    @property
    def pil_image(self) -> Any:
        return self._opened(PICTURES)

    def pil_image_ext(self, ext: str) -> Any:
        return self._opened((f".{ext}",))

    def get_path(self, ext: str) -> Path:
        return found(self, self.name, (f".{ext}",))

    def read_bytes(self, ext: str) -> bytes:
        return self.get_path(ext).read_bytes()

    def _opened(self, endings: tuple[str, ...]) -> Any:
        return pillow("ImageAsset").open(BytesIO(found(self, self.name, endings).read_bytes()))


@dataclass(frozen=True)
class VideoAsset:
    name: str  # baby_reading, or that of a file of yours, without its ending
    num_frames: int = -1  # taken evenly; -1 = all

    @property
    def video_path(self) -> str:
        return str(found(self, _VIDEO_FILES.get(self.name, self.name), VIDEOS))

    @property
    def filename(self) -> str:
        return os.path.basename(self.video_path)

    @property
    def np_ndarrays(self) -> npt.NDArray[np.uint8]:
        """[frames, H, W, 3]"""
        return self._decoded().frames_np

    @property
    def pil_images(self) -> list[Any]:
        return [pillow("VideoAsset").fromarray(frame_np) for frame_np in self.np_ndarrays]

    @property
    def metadata(self) -> dict[str, Any]:
        times = self._decoded().times
        apart = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
        return {
            "total_num_frames": len(times),
            "fps": 1 / apart if apart else 0.0,
            "duration": times[-1] + apart,
            "video_backend": "pyav",
            "frames_indices": list(range(len(times))),
            "do_sample_frames": False,
        }

    def get_audio(self, sampling_rate: float | None = None) -> npt.NDArray[np.float32]:
        samples_np = decode_audio(Path(self.video_path).read_bytes())
        return resample(samples_np, RATE, int(sampling_rate)) if sampling_rate else samples_np

    def _decoded(self) -> Video:
        data = Path(self.video_path).read_bytes()
        return decode_video(data, f"VideoAsset({self.name!r})", DEFAULT_LIMITS, "", Sampling(self.num_frames))


def found(asset: object, name: str, endings: tuple[str, ...]) -> Path:
    """Where a file lies, the first of these endings that there is."""
    root = folder()
    for place in FOLDERS:
        for ending in endings:
            path = root / place / (name + ending)
            if path.is_file():
                return path
    raise ModelNotFoundError(
        f"{asset!r}: {root / name}{endings[0]} is not there, and nothing is fetched: put the file there, or name its "
        f"folder in {ASSETS}",
        ASSETS,
    )


def folder() -> Path:
    """Where these files lie."""
    named = env.peer_variables().get(ASSETS, "").strip()
    return Path(named).expanduser() if named else env.cache_root() / "assets"
