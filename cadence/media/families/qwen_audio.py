"""Qwen2-Audio: a sound of up to half a minute, as Whisper hears it, becomes a vector for each 40 ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cadence.audio.feature_config import read_feature_config
from cadence.audio.features import log_mel
from cadence.audio.resample import resample
from cadence.config.files.qwen_audio import read_qwen_audio
from cadence.core.errors import InvalidRequestError, ModelFileError
from cadence.core.inputs.media import AUDIO, SEGMENT, MediaItem
from cadence.media.family import Content, FamilyFiles, Prepared
from cadence.media.sound import Sound

_DEFAULT_TOKEN = 151_646
_FIELD = f"multi_modal_data.{AUDIO}"
_TOKEN = "<|AUDIO|>"


class QwenAudioFamily:
    """Implements `MediaFamily`. A content's grid: positions that its sound has in the tower."""

    both_ways = False

    def __init__(self, files: FamilyFiles) -> None:
        self._audio = read_qwen_audio(files.config)
        self._features = read_feature_config(files.directory)
        found, wanted = (self._features.num_mels, self._features.num_frames), self._audio
        if found != (wanted.mels, 2 * wanted.positions):
            message = f"features are {found}, but the model hears {wanted.mels} bands of {2 * wanted.positions} frames"
            raise ModelFileError(f"{files.directory / 'preprocessor_config.json'}: {message}", "feature_size")
        token_id = files.config.get("audio_token_id", files.config.get("audio_token_index", _DEFAULT_TOKEN))
        self.token_ids: Mapping[str, int] = {AUDIO: int(token_id)}
        self.placeholders: Mapping[str, str] = {AUDIO: _between_marks(_TOKEN)}
        self.max_length: Mapping[str, int] = {AUDIO: wanted.positions // 2}

    def prepare(self, kind: str, medium: Sound) -> Prepared:
        samples_np = resample(medium.samples_np, medium.rate, self._features.sampling_rate)
        seconds = len(samples_np) / self._features.sampling_rate
        if len(samples_np) > self._features.num_samples:
            message = f"{_FIELD} is {seconds:.1f} s long; this model hears at most {self._features.seconds} s at once"
            raise InvalidRequestError(message, _FIELD)
        positions, length = self._audio.heard(-(-len(samples_np) // self._features.hop_length))
        if not length:
            raise InvalidRequestError(f"{_FIELD} is {seconds:.3f} s long: too short to be heard", _FIELD)
        features_np = log_mel(samples_np, self._features)[:, : 2 * positions + 1]
        return Prepared((Content(features_np, (positions,), length),), _between_marks(_TOKEN * length))

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        return np.zeros((0, SEGMENT), dtype=np.int32)


def _between_marks(text: str) -> str:
    return f"<|audio_bos|>{text}<|audio_eos|>"
