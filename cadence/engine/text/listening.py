"""Audio as an encoder reads it: features of a clip."""

from __future__ import annotations

import numpy as np

from cadence.audio.feature_config import FeatureConfig
from cadence.audio.features import log_mel
from cadence.audio.resample import resample
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.engine.text.prompt_media import AudioClip


def listen(clip: AudioClip, config: FeatureConfig, length: int) -> EncoderInput:
    """length: positions that the encoder makes of a window"""
    samples_np = resample(_samples(clip), clip.rate, config.sampling_rate)
    if len(samples_np) > config.num_samples:
        seconds = len(samples_np) / config.sampling_rate
        raise _wrong(f"is {seconds:.1f} s long; this model hears at most {config.seconds} s at once")
    return EncoderInput.of_features(log_mel(samples_np, config), length)


def _samples(clip: AudioClip) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """[n], of one channel"""
    try:
        samples_np = np.asarray(clip.samples, dtype=np.float32)
    except (TypeError, ValueError):
        raise _wrong("must have samples that are numbers") from None
    if samples_np.ndim != 1 or not len(samples_np):
        raise _wrong(f"must have samples of one channel, [n]; got {list(samples_np.shape)}")
    if not np.isfinite(samples_np).all():
        raise _wrong("has samples that are not finite")
    return samples_np


def _wrong(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"multi_modal_data.audio {what}", "multi_modal_data")
