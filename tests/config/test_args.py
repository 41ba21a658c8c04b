"""Options under vLLM's names: what is taken, what is refused and why, what is unknown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.config.command_line.values import human_int
from cadence.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1M", 2**20),
        ("1m", 10**6),
        ("2G", 2**31),
        ("1.5k", 1500),
        ("1.5K", 1536),
        ("-1", -1),
        ("4_096", 4096),
        ("1e3k", 10**6),
    ],
)
def test_human_int(text: str, number: int) -> None:
    assert human_int(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "0.3K", "12q", "1/2", "nan", "1 000", "0x10"])
def test_human_int_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        human_int(text)


def test_defaults_are_vllms() -> None:
    args = EngineArgs()
    assert (args.gpu_memory_utilization, args.max_logprobs, args.seed, args.dtype) == (0.92, 20, 0, "auto")
    assert (args.logprobs_mode, args.load_format) == ("raw_logprobs", "auto")
    assert args.scheduling_policy == "fair", "as fcfs for one tenant"
    assert args.generation_config == "auto"


def test_values_take_the_type_of_their_field() -> None:
    args = EngineArgs.from_options(
        model=Path("some/folder"), max_model_len="32K", max_num_seqs=np.int64(7), gpu_memory_utilization=1,
        hf_overrides='{"rope_theta": 1e6}', seed=None, hf_token=True,
    )  # fmt: skip
    assert args.model == "some/folder"
    assert args.max_model_len == 32_768
    assert args.max_num_seqs == 7 and type(args.max_num_seqs) is int
    assert args.gpu_memory_utilization == 1.0
    assert args.hf_overrides == {"rope_theta": 1e6}
    assert (args.seed, args.hf_token) == (0, None)


@pytest.mark.parametrize("written", ["auto", -1, "-1"])
def test_max_model_len_auto(written: object) -> None:
    assert EngineArgs.from_options(max_model_len=written).max_model_len == -1


def test_torch_dtypes_are_taken() -> None:
    class TorchDtype:
        def __str__(self) -> str:
            return "torch.bfloat16"

    assert EngineArgs.from_options(dtype=TorchDtype()).dtype == "bfloat16"


def test_defaults_are_not_shared() -> None:
    EngineArgs().hf_overrides["a"] = 1
    assert EngineArgs().hf_overrides == {}
    EngineArgs.from_options(hf_overrides=None).hf_overrides["a"] = 1
    assert EngineArgs.from_options(hf_overrides=None).hf_overrides == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_modl_len": 5}, "unknown option max_modl_len; did you mean max_model_len?"),
        ({"xyzzy": 5}, "unknown option xyzzy"),
        ({"tensor_paralel_size": 2}, "did you mean tensor_parallel_size?"),
        ({"dtype": "int8"}, "dtype='int8' is not one of auto, half"),
        ({"device": "tpu"}, "device='tpu' is not one of auto, cpu, cuda"),
        ({"block_size": "x"}, "block_size"),
        ({"block_size": 16.5}, "block_size"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"gpu_memory_utilization": float("nan")}, "finite"),
        ({"gpu_memory_utilization": "much"}, "gpu_memory_utilization"),
        ({"enable_prefix_caching": 2}, "enable_prefix_caching"),
        ({"model": None}, "model must not be None"),
        ({"model": 3}, "model: expected text"),
        ({"hf_overrides": "{"}, "hf_overrides: not valid JSON"),
        ({"hf_overrides": [1]}, "hf_overrides"),
        ({"kv_cache_dtype": "fp8_ds_mla"}, "bfloat16"),
        ({"quantization": "hqq"}, "gguf, int8, int4"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineArgs.from_options(**options)
    assert said in str(caught.value)
    assert caught.value.field == next(iter(options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"decode_context_parallel_size": 2}, "not shared out among ranks"),
        ({"quantization_config": {"bits": 4}}, "GGUF"),
        ({"lora_target_modules": ["q_proj"]}, "applied whole"),
        ({"speculative_config": {"method": "ngram", "kv_cache_dtype": "fp8"}}, "its target's type"),
        ({"kv_cache_dtype_skip_layers": ["0"]}, "kv_cache_dtype"),
        ({"decode_context_parallel_size": "2"}, "not shared out among ranks"),
        ({"config_format": "mistral"}, "config.json"),
    ],
)
def test_meaningless_options_say_why(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match="cannot be honoured") as caught:
        EngineArgs.from_options(**options)
    assert said in str(caught.value)


def test_every_option_has_help() -> None:
    assert all(field.metadata["help"] for field in dataclasses.fields(EngineArgs))


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in env.NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert env.cache_root() == tmp_path / ".cache" / "cadence"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert env.cache_root() == Path("/xdg/cadence")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/vllm")
    assert env.cache_root() == Path("/vllm")
    monkeypatch.setenv("CADENCE_CACHE", "~/mine")
    assert env.cache_root() == tmp_path / "mine"


def test_environment_values_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1.5")
    assert env.cpu_kv_cache_bytes() == 3 * 2**29
    for wrong in ("-1", "lots", "inf", "nan"):
        monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", wrong)
        with pytest.raises(ConfigError, match="VLLM_CPU_KVCACHE_SPACE"):
            env.cpu_kv_cache_bytes()
    assert env.cpu_isa() == "auto"
    monkeypatch.setenv("CADENCE_CPU_ISA", " AVX2 ")
    assert env.cpu_isa() == "avx2"
    monkeypatch.setenv("CADENCE_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError, match="CADENCE_LOG_LEVEL"):
        env.log_level()
