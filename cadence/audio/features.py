"""Log-mel spectrograms as Whisper's encoder takes them, in numpy."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import numpy.typing as npt

from cadence.audio.feature_config import WHISPER_FEATURES, FeatureConfig

FloatArray = npt.NDArray[np.float32]
_Float64Array = npt.NDArray[np.float64]

_POWER_FLOOR = 1e-10
_LOG_RANGE = 8.0  # powers of ten below the loudest value that are told apart
_BLOCK = 256  # frames at once: what is made of them on the way stays in a core's cache
# Slaney's mel scale: linear below 1 kHz, logarithmic above.
_LINEAR_HZ = 200.0 / 3
_KNEE_HZ = 1000.0
_LOG_STEP = np.log(6.4) / 27.0


def log_mel(samples_np: FloatArray, config: FeatureConfig = WHISPER_FEATURES) -> FloatArray:
    """samples [n] at the configured rate -> [mels, frames] float32. Padded with silence, or cut, to the model's length.

    Computed in float64: quiet bands of loud frames keep their digits, and two machines agree to the last one but few.
    """
    half = config.n_fft // 2
    samples_np = samples_np[: config.num_samples]
    padded_np = np.zeros(config.num_samples, np.float32)
    padded_np[: len(samples_np)] = samples_np
    padded_np = np.pad(padded_np, half, mode="reflect")
    # Frames that begin after the last sample hear silence alone; those at the end may hear its reflection.
    heard = (len(samples_np) + half) // config.hop_length + 1
    heard = config.num_frames if len(samples_np) > config.num_samples - half else min(heard, config.num_frames)
    logs_np = np.full((config.num_frames, config.num_mels), np.log10(_POWER_FLOOR))
    for start in range(0, heard, _BLOCK):
        end = min(start + _BLOCK, heard)
        first, last = start * config.hop_length, (end - 1) * config.hop_length + config.n_fft
        logs_np[start:end] = _log_powers(padded_np[first:last], config)
    logs_np = np.maximum(logs_np, logs_np.max() - _LOG_RANGE)
    return np.ascontiguousarray(((logs_np + 4.0) / 4.0).T, np.float32)


def _log_powers(samples_np: FloatArray, config: FeatureConfig) -> _Float64Array:
    """[hop * (frames - 1) + n_fft] -> [frames, mels]"""
    frames_np = np.lib.stride_tricks.sliding_window_view(samples_np, config.n_fft)[:: config.hop_length]
    spectrum_np = np.fft.rfft(frames_np * _window(config.n_fft))
    powers_np = spectrum_np.real**2 + spectrum_np.imag**2
    found: _Float64Array = np.log10(np.maximum(powers_np @ _filters(config), _POWER_FLOOR))
    return found


@cache
def _window(n_fft: int) -> _Float64Array:
    """Hann's, periodic."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n_fft) / n_fft)


@cache
def _filters(config: FeatureConfig) -> _Float64Array:
    """[n_fft / 2 + 1, mels]: triangles of equal area, evenly spaced on the mel scale from 0 Hz to 8 kHz."""
    edges_np = _to_hertz(np.linspace(0.0, _to_mel(config.top_hertz), config.num_mels + 2))
    bins_np = np.linspace(0.0, config.sampling_rate / 2, config.n_fft // 2 + 1)
    slopes_np = edges_np[None, :] - bins_np[:, None]  # [bins, mels + 2]
    widths_np = np.diff(edges_np)
    rising_np, falling_np = -slopes_np[:, :-2] / widths_np[:-1], slopes_np[:, 2:] / widths_np[1:]
    areas_np = 2.0 / (edges_np[2:] - edges_np[:-2])
    return np.maximum(0.0, np.minimum(rising_np, falling_np)) * areas_np


def _to_mel(hertz: float) -> float:
    if hertz < _KNEE_HZ:
        return hertz / _LINEAR_HZ
    return float(_KNEE_HZ / _LINEAR_HZ + np.log(hertz / _KNEE_HZ) / _LOG_STEP)


def _to_hertz(mels_np: _Float64Array) -> _Float64Array:
    knee = _KNEE_HZ / _LINEAR_HZ
    return np.where(mels_np < knee, mels_np * _LINEAR_HZ, _KNEE_HZ * np.exp(_LOG_STEP * (mels_np - knee)))


def features_digest(features_np: FloatArray) -> str:
    """Of the content, as hexadecimal digits: equal features have one encoder output."""
    shape = np.array(features_np.shape, np.int64).tobytes()
    return hashlib.sha256(shape + np.ascontiguousarray(features_np, np.float32).tobytes()).hexdigest()
