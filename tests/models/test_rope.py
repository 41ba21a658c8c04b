"""The rotary table of every kind is transformers' own, read from either spelling of the settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cadence.core.errors import ConfigError
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.build import BuildContext
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary

pytestmark = pytest.mark.device

HEAD_DIM = 32
LENGTH = 256

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, mscale": {"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.2, "mscale_all_dim": 0.7},
    "yarn, betas": {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 2.0},
    "yarn, smooth": {"factor": 4.0, "original_max_position_embeddings": 64, "truncate": False},
    "yarn, given": {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5},
    "longrope": {
        "short_factor": [1.0] * 16,
        "long_factor": [1.0 + i for i in range(16)],
        "original_max_position_embeddings": 64,
    },
}


def table(config: dict[str, Any], max_model_len: int = LENGTH) -> torch.Tensor:
    build = BuildContext(torch.float32, torch.device("cpu"), ReferenceOps(), max_model_len)
    return Rotary(build, read_rope(config, HEAD_DIM)).cos_sin


def oracle(rope: dict[str, Any], length: int, max_positions: int) -> torch.Tensor:
    """What transformers computes with for one sequence of `length` tokens."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=HEAD_DIM,
        max_position_embeddings=max_positions,
        rope_parameters=rope,
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    half = cos.shape[-1] // 2
    return torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1)


def same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """transformers computes the base of dynamic NTK in float32, we in float64: angles differ by a rounding."""
    torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=0)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("max_positions", [LENGTH, 128])
def test_table_equals_transformers_at_max_model_len(name: str, max_positions: int) -> None:
    rope = {"rope_type": name.split(",")[0], "rope_theta": 50_000.0, **KINDS[name]}
    theirs = oracle(dict(rope), LENGTH, max_positions)
    new = {"max_position_embeddings": max_positions, "rope_parameters": rope}
    same(table(new), theirs)
    scaling = {key: value for key, value in rope.items() if key not in ("rope_type", "rope_theta")}
    old = {
        "max_position_embeddings": max_positions,
        "rope_theta": 50_000.0,
        "rope_scaling": {"type": rope["rope_type"], **scaling},
    }
    same(table(old), theirs)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_within_the_original_length_the_table_is_that_of_short_sequences(name: str) -> None:
    """max_model_len decides, so a short request gets one rotation, whatever else is running."""
    rope = {"rope_type": name, "rope_theta": 10_000.0, **KINDS[name]}
    config = {"max_position_embeddings": 64, "rope_parameters": rope}
    short = table(config, max_model_len=64)
    assert torch.equal(short[:10], oracle(dict(rope), 10, 64))
    assert not torch.allclose(short, table(config, max_model_len=65)[:64]), "beyond it, the stretched one"


def test_partial_rotation_and_plain_files() -> None:
    assert table({"max_position_embeddings": 64, "partial_rotary_factor": 0.25}).shape == (LENGTH, HEAD_DIM // 4)
    assert torch.equal(table({"max_position_embeddings": 64}), oracle({"rope_theta": 10_000.0}, LENGTH, 64))
    null = {"max_position_embeddings": 64, "rope_scaling": None, "rope_theta": 10_000}
    assert torch.equal(table(null), oracle({"rope_theta": 10_000.0}, LENGTH, 64))


def test_settings_per_kind_of_layer() -> None:
    nested = {"full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2.0}, "sliding_attention": {}}
    config = {"max_position_embeddings": 64, "rope_parameters": nested}
    full, local = read_rope(config, HEAD_DIM, "full_attention"), read_rope(config, HEAD_DIM, "sliding_attention")
    assert (full.kind, full.theta, local.kind, local.theta) == ("linear", 1e6, "default", 10_000.0)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "spiral"}, "spiral"),
        ({"rope_type": "linear"}, "'factor'"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": "1"}, "low_freq_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "list of 16"),
        ([1.0], "must be an object"),
        ({"rope_type": "default", "mrope_section": [4, 6]}, "3 numbers whose sum is 16"),
        ({"type": "mrope", "mrope_section": [4, 6, 7]}, "3 numbers whose sum is 16"),
    ],
)
def test_bad_settings_are_named(rope: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        table({"max_position_embeddings": 64, "rope_parameters": rope})


def test_pairs_turn_by_the_axes_of_their_sections() -> None:
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding, Qwen2VLTextConfig

    rope = {"type": "mrope", "mrope_section": [4, 5, 7], "rope_theta": 1e4}
    config = Qwen2VLTextConfig(hidden_size=64, num_attention_heads=2, rope_parameters=dict(rope))
    places = torch.randint(0, LENGTH, (3, 1, 50), generator=torch.Generator().manual_seed(0))
    cos, sin = Qwen2VLRotaryEmbedding(config)(torch.zeros(1), places)
    build = BuildContext(torch.float32, torch.device("cpu"), ReferenceOps(), LENGTH)
    axes = Rotary(build, read_rope({"max_position_embeddings": 64, "rope_parameters": rope}, HEAD_DIM)).axes
    at = places[:, 0].T[:, axes.axis_of.long()]  # [50, 16]
    ours = axes.cos_sin.gather(0, torch.cat([at, at], dim=1))
    torch.testing.assert_close(ours, torch.cat([cos[0, :, :16], sin[0, :, :16]], dim=-1))


def test_interleaved_pairs_take_turns() -> None:
    settings = {"mrope_section": [10, 4, 2], "mrope_interleaved": True}
    found = read_rope({"max_position_embeddings": 64, "rope_scaling": settings}, HEAD_DIM).axis_of
    assert found == (0, 1, 2, 0, 1, 2, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0)
