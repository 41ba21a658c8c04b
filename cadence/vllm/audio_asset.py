"""Recordings that scripts for vLLM name: looked for on this machine, never fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cadence.audio.decode import RATE, decode_audio
from cadence.config import env
from cadence.core.errors import ModelNotFoundError

ASSETS = "VLLM_ASSETS_CACHE"
ENDINGS = (".ogg", ".wav", ".flac", ".mp3", ".m4a", ".webm")
FOLDERS = ("", "vllm_public_assets", "vllm_public_assets/multimodal_asset")  # below the folder of assets


@dataclass(frozen=True)
class AudioAsset:
    name: str  # winning_call, mary_had_lamb, or that of a file of yours, without its ending

    @property
    def audio_and_sample_rate(self) -> tuple[npt.NDArray[np.float32], int]:
        """Samples [n] of one channel, and how many a second has."""
        return decode_audio(self.get_local_path().read_bytes()), RATE

    def get_local_path(self) -> Path:
        root = folder()
        for place in FOLDERS:
            for ending in ENDINGS:
                path = root / place / (self.name + ending)
                if path.is_file():
                    return path
        raise ModelNotFoundError(
            f"AudioAsset({self.name!r}): {root / self.name}.ogg is not there, and nothing is fetched: put the "
            f"recording there, or name its folder in {ASSETS}",
            ASSETS,
        )


def folder() -> Path:
    """Where recordings lie."""
    named = env.peer_variables().get(ASSETS, "").strip()
    return Path(named).expanduser() if named else env.cache_root() / "assets"
