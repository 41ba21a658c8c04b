"""How a model wants to hear: the fields of preprocessor_config.json that its features depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.files.json_file import read_object
from cadence.core.errors import ModelFileError

_MOST_BYTES = 16 * 2**20  # older files carry their mel filters
# name in the file -> field, least, most
_FIELDS = {
    "feature_size": ("num_mels", 1, 1024),
    "sampling_rate": ("sampling_rate", 1000, 384_000),
    "n_fft": ("n_fft", 2, 65_536),
    "hop_length": ("hop_length", 1, 65_536),
    "chunk_length": ("seconds", 1, 3600),
}


@dataclass(frozen=True, slots=True)
class FeatureConfig:
    num_mels: int = 80
    sampling_rate: int = 16_000  # Hz
    n_fft: int = 400  # samples of a frame
    hop_length: int = 160  # samples from a frame to the next
    seconds: int = 30  # of a window: shorter ones are padded with silence

    @property
    def num_samples(self) -> int:
        return self.seconds * self.sampling_rate

    @property
    def num_frames(self) -> int:
        return self.num_samples // self.hop_length

    @property
    def top_hertz(self) -> float:
        """Of the highest mel filter."""
        return 8000.0

    @classmethod
    def of(cls, raw: Mapping[str, Any], source: Path) -> FeatureConfig:
        """From the fields of a file. What is missing is Whisper's."""
        kind = raw.get("feature_extractor_type", "WhisperFeatureExtractor")
        if kind != "WhisperFeatureExtractor":
            raise ModelFileError(
                f"{source}: feature_extractor_type is {str(kind)[:60]!r}; WhisperFeatureExtractor is read."
            )
        found = {}
        for name, (field, least, most) in _FIELDS.items():
            value = raw.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ModelFileError(f"{source}: {name} must be an integer from {least} to {most}.")
            found[field] = value
        return cls(**found)._checked(source)

    def _checked(self, source: Path) -> FeatureConfig:
        if self.hop_length > self.n_fft or self.n_fft % 2:
            raise ModelFileError(f"{source}: n_fft must be even, and hop_length at most n_fft.")
        if self.num_samples > 2**26:
            raise ModelFileError(f"{source}: chunk_length times sampling_rate must be at most {2**26} samples.")
        return self


WHISPER_FEATURES = FeatureConfig()


def read_feature_config(directory: Path) -> FeatureConfig:
    """Of a model's folder; Whisper's own where it has no such file."""
    path = directory / "preprocessor_config.json"
    if path.is_file():
        return FeatureConfig.of(read_object(path, _MOST_BYTES, ModelFileError), path)
    path = directory / "processor_config.json"  # newer: one file for all that prepares inputs
    if path.is_file():
        inner = read_object(path, _MOST_BYTES, ModelFileError).get("feature_extractor", {})
        return FeatureConfig.of(inner if isinstance(inner, dict) else {}, path)
    return WHISPER_FEATURES
