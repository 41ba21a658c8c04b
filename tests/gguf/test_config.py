"""GGUF metadata as an HF config: rope scaling in its several forms, and files we must refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence.core.errors import WeightsError
from cadence.gguf.config import gguf_config
from cadence.gguf.file import GGUFFile
from tests.helpers.gguf_files import NO_TENSORS, Tensors, write_gguf

METADATA = {
    ".block_count": 2,
    ".context_length": 128,
    ".embedding_length": 256,
    ".feed_forward_length": 64,
    ".attention.head_count": 4,
    ".attention.layer_norm_rms_epsilon": 1e-5,
    ".rope.freq_base": 500000.0,
}
EMBEDDING = {"token_embd.weight": np.zeros((8, 256), np.float32)}


def config_of(tmp_path: Path, arch: str = "llama", tensors: Tensors = NO_TENSORS, **metadata: Any) -> dict[str, Any]:
    named = {"." + key.replace("__", "."): value for key, value in metadata.items()}
    path = write_gguf(tmp_path / "m.gguf", arch, METADATA | named, {**EMBEDDING, **tensors})
    return gguf_config(GGUFFile(path))


def test_defaults(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert config["num_key_value_heads"] == 4
    assert config["head_dim"] == 64
    assert config["rms_norm_eps"] == 1e-5  # the decimal that was meant, not its float32 neighbour
    assert config["rope_scaling"] is None
    assert config["tie_word_embeddings"] is True
    assert config["vocab_size"] == 8


def test_output_weight_unties(tmp_path: Path) -> None:
    assert config_of(tmp_path, tensors={"output.weight": np.zeros((8, 256))})["tie_word_embeddings"] is False


def test_linear_and_yarn(tmp_path: Path) -> None:
    linear = config_of(tmp_path, rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    yarn = config_of(
        tmp_path, rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=32
    )
    assert yarn["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def test_llama3_scaling_is_read_off_its_divisors(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    said = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    hf = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters={"rope_theta": 500000.0, **said})
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](hf, torch.device("cpu"))
    plain = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    divisors_np = (plain / scaled).numpy()
    assert config_of(tmp_path, tensors={"rope_freqs.weight": divisors_np})["rope_scaling"] == said
    with pytest.raises(WeightsError, match="rope_freqs"):
        config_of(tmp_path, tensors={"rope_freqs.weight": divisors_np[::-1].copy()})


LLAMA4 = {"expert_count": 16, "expert_used_count": 1, "expert_feed_forward_length": 32, "interleave_moe_layer_step": 1}


def test_what_files_of_llama4_do_not_say(tmp_path: Path) -> None:
    """Nor how queries grow; norms of queries and keys are told by the number of experts, and nothing lies between
    frequencies that are divided and those that are not."""
    said = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 8192}
    wavelengths = 2 * np.pi * 500000.0 ** (np.arange(0, 64, 2) / 64)
    divisors_np = np.where(wavelengths > 8192, 16.0, 1.0).astype(np.float32)
    config = config_of(tmp_path, "llama4", {"rope_freqs.weight": divisors_np}, block_count=5, **LLAMA4)
    assert config["rope_scaling"] == {"rope_type": "llama3", **said}
    assert (config["intermediate_size"], config["intermediate_size_mlp"]) == (32, 64)
    assert config["layer_types"] == ["chunked_attention"] * 3 + ["full_attention", "chunked_attention"]
    assert config["no_rope_layers"] == [True, True, True, False, True] and config["use_qk_norm"]
    assert (config["attention_chunk_size"], config["floor_scale"], config["attn_scale"]) == (8192, 8192, 0.1)
    assert not config_of(tmp_path, "llama4", **LLAMA4 | {"expert_count": 128})["use_qk_norm"]
    with pytest.raises(WeightsError, match="a Llama 4 without chunks is not read"):
        config_of(tmp_path, "llama4", attention__sliding_window=0, **LLAMA4)


def test_longrope_of_phi3(tmp_path: Path) -> None:
    factors = {
        "rope_factors_long.weight": np.linspace(1, 4, 24, dtype=np.float32),
        "rope_factors_short.weight": np.linspace(1, 2, 24, dtype=np.float32),
    }
    config = config_of(tmp_path, "phi3", factors, rope__scaling__original_context_length=32, rope__dimension_count=48)
    assert config["rope_scaling"]["rope_type"] == "longrope"
    assert config["rope_scaling"]["long_factor"] == factors["rope_factors_long.weight"].tolist()
    assert config["rope_scaling"]["short_factor"] == factors["rope_factors_short.weight"].tolist()
    assert config["original_max_position_embeddings"] == 32
    assert config["partial_rotary_factor"] == 0.75


def test_query_scale_of_the_27b_gemmas(tmp_path: Path) -> None:
    small = config_of(tmp_path, "gemma2", attention__key_length=32, attention__value_length=32)
    large = config_of(tmp_path, "gemma2", attention__key_length=32, attention__value_length=32, block_count=46)
    assert (small["query_pre_attn_scalar"], large["query_pre_attn_scalar"]) == (32, 64)
    assert large["layer_types"][:3] == ["sliding_attention", "full_attention", "sliding_attention"]


def test_every_end_token_ends(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        "llama",
        METADATA | {f"tokenizer.ggml.{name}_token_id": i for i, name in enumerate(("eos", "eot", "eom"))},
        EMBEDDING,
    )
    assert gguf_config(GGUFFile(path))["eos_token_id"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("arch", "metadata", "message"),
    [
        (
            "rwkv7",
            {},
            "'rwkv7' is not supported .states of another form; closest: Mamba2ForCausalLM and .*",
        ),
        ("qwen3", {"expert_count": 8}, "experts are not read from GGUF files of qwen3; they are from llama, qwen3moe"),
        ("llama", {"expert_count": 8}, r"no 'llama\.expert_used_count'"),
        ("llama", {"expert_count": 4, "expert_used_count": 5}, "5 of 4 experts"),
        ("qwen3moe", {"expert_count": 1 << 20, "expert_used_count": 1}, "at most 1024"),
        ("llama", {"attention__value_length": 16}, "values of another length"),
        ("llama", {"attention__head_count": [4, 8]}, r"llama\.attention\.head_count must be one whole number"),
        ("llama", {"attention__head_count": 0}, "0 attention heads"),
        ("llama", {"rope__scaling__type": "odd", "rope__scaling__factor": 2.0}, "rope scaling 'odd'"),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, arch: str, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        config_of(tmp_path, arch, **metadata)
    assert "m.gguf" in str(caught.value)


def test_missing_keys_and_parts_are_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "llama", {".block_count": 2}, EMBEDDING)
    with pytest.raises(WeightsError, match=r"a\.gguf: metadata has no 'llama\.attention\.head_count'"):
        gguf_config(GGUFFile(path))
    path = write_gguf(tmp_path / "b.gguf", "llama", METADATA | {"split.count": 3}, EMBEDDING)
    with pytest.raises(WeightsError, match="split"):
        gguf_config(GGUFFile(path))
    path = write_gguf(tmp_path / "c.gguf", "llama", METADATA)
    with pytest.raises(WeightsError, match=r"'token_embd\.weight' is missing"):
        gguf_config(GGUFFile(path))
