"""Log-mel features are those of transformers' extractor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from cadence.audio.feature_config import FeatureConfig, read_feature_config
from cadence.audio.features import features_digest, log_mel
from cadence.core.errors import ModelFileError


def noise(num_samples: int) -> np.ndarray:
    """Bursts of noise and tones over a quiet floor."""
    random = np.random.default_rng(num_samples)
    times_np = np.arange(num_samples) / 16_000
    loudness_np = 0.02 + np.clip(np.sin(2 * np.pi * 0.7 * times_np), 0, 1)
    signal_np = loudness_np * (0.2 * random.standard_normal(num_samples) + 0.3 * np.sin(2 * np.pi * 440 * times_np))
    return signal_np.astype(np.float32)


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("num_samples", [1, 160, 16_001, 479_801, 480_000, 480_500])
def test_values_of_transformers(mels: int, num_samples: int) -> None:
    samples_np = noise(num_samples)
    config = FeatureConfig(num_mels=mels)
    extractor = WhisperFeatureExtractor(feature_size=mels)
    found_np = log_mel(samples_np, config)
    expected_np = extractor(samples_np, sampling_rate=16_000, return_tensors="np")["input_features"][0]
    assert found_np.shape == expected_np.shape == (mels, 3000)
    assert found_np.dtype == np.float32
    np.testing.assert_allclose(found_np, expected_np, atol=3e-5)  # it computes in float32


def test_values_of_transformers_in_float64() -> None:
    extractor = WhisperFeatureExtractor(chunk_length=5)
    samples_np = noise(80_000)
    expected_np = extractor._np_extract_fbank_features(samples_np[None], "cpu")[0]
    np.testing.assert_allclose(log_mel(samples_np, FeatureConfig(seconds=5)), expected_np, atol=1e-6)


def test_silence_is_flat() -> None:
    extractor = WhisperFeatureExtractor()
    expected_np = extractor(np.zeros(100, np.float32), sampling_rate=16_000, return_tensors="np")["input_features"][0]
    np.testing.assert_allclose(log_mel(np.zeros(100, np.float32)), expected_np, atol=1e-6)


def test_digest_is_of_the_content() -> None:
    features_np = log_mel(noise(4000))
    assert features_digest(features_np) == features_digest(features_np.copy())
    changed_np = features_np.copy()
    changed_np[3, 4] += 1e-6
    assert features_digest(changed_np) != features_digest(features_np)
    assert features_digest(features_np.reshape(40, 6000)) != features_digest(features_np)


def test_fields_are_read_from_a_models_folder(tmp_path: Path) -> None:
    assert read_feature_config(tmp_path) == FeatureConfig()
    WhisperFeatureExtractor(feature_size=128, chunk_length=20).save_pretrained(tmp_path)
    config = read_feature_config(tmp_path)
    assert (config.num_mels, config.seconds, config.num_frames) == (128, 20, 2000)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"feature_size": 0}, "feature_size"),
        ({"hop_length": "160"}, "hop_length"),
        ({"n_fft": 401}, "n_fft"),
        ({"chunk_length": True}, "chunk_length"),
        ({"chunk_length": 3600, "sampling_rate": 384_000}, "chunk_length"),
        ({"feature_extractor_type": "EncodecFeatureExtractor"}, "feature_extractor_type"),
    ],
)
def test_a_file_that_cannot_be_is_refused(tmp_path: Path, fields: dict[str, object], word: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelFileError, match=word):
        read_feature_config(tmp_path)
