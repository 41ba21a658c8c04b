"""`resolve`: defaults by device, limits by name, context lengths as the models state them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cadence.config.args import EngineArgs
from cadence.config.context_length import model_context_length
from cadence.config.engine_config import EngineConfig
from cadence.config.hf import HFConfig, make_hf_config
from cadence.config.parallel import devices_by_engine
from cadence.config.reference import ModelFiles
from cadence.config.resolve.generation import default_sampling
from cadence.config.resolve.resolve import ResolveInputs, fit_context, idle_options, resolve
from cadence.core.errors import ConfigError, ModelFileError
from cadence.engine.fleet.dp_client import options_by_engine

GIB = 2**30


@dataclass(frozen=True)
class Caps:
    kind: str = "cpu"
    total_memory: int = 8 * GIB
    native_bf16: bool = False
    native_fp16: bool = False
    count: int = 1


CPU, CPU_BF16, CPU_FP16 = Caps(), Caps(native_bf16=True), Caps(native_fp16=True)
GPU = Caps("cuda", 80 * GIB, True)
FOLDER = ModelFiles("tiny", Path("/models/tiny"), None)
GGUF = ModelFiles("tiny", Path("/models"), Path("/models/tiny.gguf"))


def hf(generation: dict[str, Any] | None = None, **raw: Any) -> HFConfig:
    base = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}
    return make_hf_config("tiny", Path("/models/tiny/config.json"), {**base, **raw}, generation or {})


def resolved(caps: Caps = GPU, files: ModelFiles = FOLDER, raw: HFConfig | None = None, **options: Any) -> EngineConfig:
    return resolve(EngineArgs.from_options(**options), files, raw or hf(), caps)


def test_defaults_on_the_gpu() -> None:
    config = resolved()
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (1024, 8192)
    assert resolved(Caps("cuda", 48 * GIB, True)).scheduler.max_num_seqs == 256
    assert (config.cache.block_size, config.cache.enable_prefix_caching) == (16, True)
    assert (config.cache.kv_cache_memory_bytes, config.cache.num_blocks_override) == (0, 0)
    assert config.scheduler.enable_chunked_prefill and config.scheduler.steps_in_flight == 2
    assert (config.scheduler.burst_steps, config.device.graphs, config.device.deterministic) == (8, "padded", False)
    assert (config.scheduler.max_inter_token_seconds, config.scheduler.min_prompt_tokens) == (0.06, 256)
    assert config.model.max_model_len == 4096
    assert config.tokenizer.files == FOLDER
    assert (config.device.kind, config.load.load_format) == ("cuda", "auto")


def test_offline_work_takes_larger_steps_on_a_large_gpu() -> None:
    for caps, options, tokens in (
        (GPU, {}, 16384),
        (Caps("cuda", 48 * GIB, True), {}, 8192),
        (CPU, {}, 2048),
        (GPU, {"max_num_batched_tokens": 4096}, 4096),
    ):
        found = resolve(EngineArgs.from_options(**options), FOLDER, hf(), caps, ResolveInputs(offline=True))
        assert found.scheduler.max_num_batched_tokens == tokens


def test_defaults_on_the_cpu() -> None:
    config = resolved(CPU)
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (64, 2048)
    assert (config.scheduler.max_inter_token_seconds, config.scheduler.min_prompt_tokens) == (0.25, 32)
    assert config.cache.kv_cache_memory_bytes == 2 * GIB
    assert resolved(Caps(total_memory=512 * GIB)).cache.kv_cache_memory_bytes == 4 * GIB


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, "float32"),
        ("auto", "float32"),
        ("float", "float32"),
        ("half", "float16"),
        ("torch.bfloat16", "bfloat16"),
        ("int8_per_token_head", "int8"),
        ("fp8", "fp8_e4m3"),
        ("fp8_e5m2", "fp8_e5m2"),
        ("int4", "int4"),
    ],
)
def test_kv_cache_dtype_on_the_cpu(asked: str | None, given: str) -> None:
    args = EngineArgs.from_options(dtype="float32", kv_cache_dtype=asked)
    assert resolve(args, FOLDER, hf(), CPU).cache.dtype == given


def test_kv_cache_dtype_beside_blocks_of_few_bits() -> None:
    for options, given in (
        ({}, "float16"),
        ({"dtype": "float32"}, "float32"),
        ({"kv_cache_dtype": "float32"}, "float32"),
        ({"quantization": "none"}, "float32"),
        ({"kernels": "reference"}, "float32"),
    ):
        assert resolve(EngineArgs.from_options(**options), GGUF, hf(), CPU).cache.dtype == given, options
    gemma = hf(architectures=["Gemma2ForCausalLM"])
    assert resolve(EngineArgs.from_options(), GGUF, gemma, CPU).cache.dtype == "float32", "it overflows float16"


def test_kv_cache_dtype_that_a_checkpoint_was_made_for() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}

    def with_scheme(scheme: object) -> HFConfig:
        config = {"quant_method": "compressed-tensors", "config_groups": groups, "format": "float-quantized"}
        return hf(quantization_config={**config, "kv_cache_scheme": scheme})

    fp8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    for options, scheme, given in (
        ({}, fp8, "fp8_e4m3"),
        ({"kv_cache_dtype": "auto"}, fp8, "fp8_e4m3"),
        ({"kv_cache_dtype": "bfloat16"}, fp8, "bfloat16"),
        ({"kv_cache_dtype": "int8"}, fp8, "int8"),
        ({"quantization": "none"}, fp8, "bfloat16"),
        ({}, {**fp8, "type": "int"}, "bfloat16"),
        ({}, None, "bfloat16"),
    ):
        args = EngineArgs.from_options(dtype="bfloat16", **options)
        for caps in (CPU, GPU):
            inputs = ResolveInputs(compiler=True)
            assert resolve(args, FOLDER, with_scheme(scheme), caps, inputs).cache.dtype == given, (options, scheme)
    for wrong in ("fp8", {"num_bits": "eight", "type": "float"}, {"type": "real"}):
        with pytest.raises(ModelFileError, match="kv_cache_scheme"):
            resolve(EngineArgs.from_options(), FOLDER, with_scheme(wrong), CPU)


def test_bfloat16_on_a_cpu_that_has_float16_arithmetic() -> None:
    """Kernels of ours multiply it in that; without them torch would, and take minutes."""
    ours = ResolveInputs(compiler=True)
    for options, raw, inputs, given in (
        ({}, hf(), ours, ("bfloat16", "float16")),
        ({"dtype": "bfloat16"}, hf(), ours, ("bfloat16", "float16")),
        ({"kv_cache_dtype": "bfloat16"}, hf(), ours, ("bfloat16", "bfloat16")),
        ({}, hf(torch_dtype="float16"), ours, ("float32", "float32")),
        ({"quantization": "int8"}, hf(), ours, ("float32", "float32")),
        ({"kernels": "reference"}, hf(), ours, ("float32", "float32")),
        ({}, hf(), ResolveInputs(), ("float32", "float32")),
        ({}, hf(), ResolveInputs(compiler=True, cpu_isa="neon"), ("float32", "float32")),
        ({}, hf(architectures=["Gemma2ForCausalLM"]), ours, ("bfloat16", "bfloat16")),
    ):
        found = resolve(EngineArgs.from_options(**options), FOLDER, raw, CPU_FP16, inputs)
        assert (found.model.dtype, found.cache.dtype) == given, (options, inputs)
    beside_blocks = resolve(EngineArgs.from_options(), GGUF, hf(), CPU_FP16, ours)
    assert (beside_blocks.model.dtype, beside_blocks.cache.dtype) == ("float32", "float16")
    native = resolve(EngineArgs.from_options(), FOLDER, hf(), Caps(native_bf16=True, native_fp16=True), ours)
    assert (native.model.dtype, native.cache.dtype) == ("bfloat16", "bfloat16")


def test_kv_cache_dtype_on_a_gpu_is_the_models_or_of_eight_bits() -> None:
    for asked in ("auto", "bfloat16"):
        args = EngineArgs.from_options(dtype="bfloat16", kv_cache_dtype=asked)
        assert resolve(args, FOLDER, hf(), GPU).cache.dtype == "bfloat16"
    for asked, given in (("int8", "int8"), ("fp8", "fp8_e4m3"), ("fp8_per_token_head", "fp8_e4m3"), ("fp8_e5m2",) * 2):
        args = EngineArgs.from_options(dtype="bfloat16", kv_cache_dtype=asked)
        assert resolve(args, FOLDER, hf(), GPU).cache.dtype == given
        with pytest.raises(ConfigError, match="kernels=reference"):
            resolve(dataclasses.replace(args, kernels="reference"), FOLDER, hf(), GPU)
    for asked in ("int4", "float32", "float16"):
        with pytest.raises(ConfigError, match="bfloat16") as caught:
            resolve(EngineArgs.from_options(dtype="bfloat16", kv_cache_dtype=asked), FOLDER, hf(), GPU)
        assert caught.value.field == "kv_cache_dtype"


def test_instruction_set_by_environment() -> None:
    assert resolved(CPU).device.cpu_isa == "auto"
    assert resolve(EngineArgs(), FOLDER, hf(), CPU, ResolveInputs(cpu_isa="avx2")).device.cpu_isa == "avx2"


def test_cpu_kv_cache_by_environment_and_by_option() -> None:
    inputs = ResolveInputs(cpu_kv_bytes=3 * GIB)
    assert resolve(EngineArgs(), FOLDER, hf(), CPU, inputs).cache.kv_cache_memory_bytes == 3 * GIB
    assert resolve(EngineArgs(), FOLDER, hf(), GPU, inputs).cache.kv_cache_memory_bytes == 0
    args = EngineArgs.from_options(kv_cache_memory_bytes="1G")
    assert resolve(args, FOLDER, hf(), CPU, inputs).cache.kv_cache_memory_bytes == GIB


def test_another_tokenizer() -> None:
    inputs = ResolveInputs(tokenizer_files=GGUF)
    assert resolve(EngineArgs(), FOLDER, hf(), CPU, inputs).tokenizer.files == GGUF


@pytest.mark.parametrize(
    ("asked", "stored", "files", "caps", "expected"),
    [
        ("auto", "bfloat16", FOLDER, GPU, "bfloat16"),
        ("auto", "float16", FOLDER, GPU, "float16"),
        ("auto", "float32", FOLDER, GPU, "bfloat16"),
        ("auto", None, FOLDER, GPU, "bfloat16"),
        ("auto", None, GGUF, GPU, "bfloat16"),
        ("auto", "bfloat16", FOLDER, CPU, "float32"),
        ("auto", "bfloat16", FOLDER, CPU_BF16, "bfloat16"),
        ("auto", "float16", FOLDER, CPU_BF16, "bfloat16"),
        ("auto", "float32", FOLDER, CPU_BF16, "float32"),
        ("auto", None, GGUF, CPU_BF16, "bfloat16"),
        ("auto", None, GGUF, CPU, "float32"),
        ("half", "bfloat16", FOLDER, CPU, "float16"),
        ("float", "bfloat16", FOLDER, GPU, "float32"),
    ],
)
def test_dtype(asked: str, stored: str | None, files: ModelFiles, caps: Caps, expected: str) -> None:
    assert resolved(caps, files, hf(torch_dtype=stored), dtype=asked).model.dtype == expected


@pytest.mark.parametrize(
    ("caps", "files", "options", "expected"),
    [
        (CPU, GGUF, {}, "gguf"),
        (CPU, GGUF, {"quantization": "none"}, "none"),
        (CPU, GGUF, {"quantization": "int8"}, "int8"),
        (CPU, GGUF, {"kernels": "reference"}, "none"),
        (CPU, GGUF, {"load_format": "dummy"}, "none"),
        (CPU, FOLDER, {}, "none"),
        (CPU, FOLDER, {"quantization": "fp8"}, "fp8"),
        (GPU, GGUF, {}, "gguf"),
        (GPU, GGUF, {"quantization": "gguf"}, "gguf"),
        (GPU, GGUF, {"kernels": "reference"}, "none"),
        (GPU, FOLDER, {"quantization": "fp8"}, "fp8"),
        (GPU, FOLDER, {"quantization": "int4"}, "int4"),
        (GPU, FOLDER, {"quantization": "none"}, "none"),
    ],
)
def test_quantization(caps: Caps, files: ModelFiles, options: dict[str, Any], expected: str) -> None:
    assert resolved(caps, files, **options).load.quantization == expected


@pytest.mark.parametrize(
    ("caps", "options", "expected"),
    [
        (CPU, {}, "checkpoint"),
        (CPU, {"quantization": "awq"}, "checkpoint"),
        (CPU, {"quantization": "awq_marlin"}, "checkpoint"),
        (CPU, {"quantization": "none"}, "none"),
        (CPU, {"quantization": "int4"}, "int4"),
        (CPU, {"kernels": "reference"}, "none"),
        (CPU, {"load_format": "dummy"}, "none"),
        (GPU, {}, "checkpoint"),
        (GPU, {"quantization": "awq"}, "checkpoint"),
    ],
)
def test_quantised_checkpoints(caps: Caps, options: dict[str, Any], expected: str) -> None:
    awq = hf(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    assert resolved(caps, FOLDER, awq, **options).load.quantization == expected


@pytest.mark.parametrize("asked", ["gptq", "fp8", "bitsandbytes", "compressed-tensors", "gguf"])
def test_another_method_than_the_checkpoints(asked: str) -> None:
    awq = hf(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    for raw in (awq,) if asked == "fp8" else (awq, hf()):  # fp8 can be made of plain weights
        with pytest.raises(ConfigError, match=f"quantization={asked}"):
            resolved(CPU, FOLDER, raw, quantization=asked)


def test_newer_spelling_of_the_stored_dtype() -> None:
    assert resolved(raw=hf(torch_dtype=None, dtype="float16")).model.dtype == "float16"


def test_gemma_never_runs_in_float16() -> None:
    gemma = hf(architectures=["Gemma2ForCausalLM"], torch_dtype="float16")
    assert resolved(raw=gemma).model.dtype == "bfloat16"
    with pytest.raises(ConfigError, match="overflows"):
        resolved(raw=gemma, dtype="float16")


@pytest.mark.parametrize(
    ("raw", "length"),
    [
        ({}, 4096),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"max_sequence_length": 2048}, 2048),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 16384),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 4096),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}}, 8192),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 16384),
        ({"rope_scaling": {"type": "longrope", "short_factor": [], "long_factor": []}}, 4096),
        ({"architectures": ["Gemma3ForCausalLM"], "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 4096),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000}}, 8192),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000}}, 4096),
    ],
)
def test_context_length(raw: dict[str, Any], length: int) -> None:
    assert model_context_length(hf(**raw)) == length


@pytest.mark.parametrize("value", [None, 0, "long"])
def test_context_length_must_be_there(value: object) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        model_context_length(hf(max_position_embeddings=value))


@pytest.mark.parametrize(
    ("options", "field", "said"),
    [
        ({"max_model_len": 4097}, "max_model_len", "max_model_len=4097 is not between 1 and 4096"),
        ({"max_model_len": 0}, "max_model_len", "max_model_len=0"),
        ({"block_size": 24}, "block_size", "block_size=24 is not a power of two"),
        ({"block_size": 4}, "block_size", "between 8 and 256"),
        ({"block_size": 512}, "block_size", "between 8 and 256"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization", "above 0 and at most 1"),
        ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization", "above 0 and at most 1"),
        ({"kv_cache_memory_bytes": -5}, "kv_cache_memory_bytes", "kv_cache_memory_bytes=-5"),
        ({"kv_cache_memory_bytes": "1T"}, "kv_cache_memory_bytes", "80.0 GiB"),
        ({"num_gpu_blocks_override": -1}, "num_gpu_blocks_override", "at least 0"),
        ({"max_num_seqs": 0}, "max_num_seqs", "at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens", "at least 1"),
        ({"max_num_batched_tokens": 16, "max_num_seqs": 17}, "max_num_batched_tokens", "below max_num_seqs=17"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 4095}, "max_num_batched_tokens", "4096"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold", "at least 0"),
        ({"max_inter_token_ms": -1}, "max_inter_token_ms", "at least 0"),
        ({"max_logprobs": -2}, "max_logprobs", "at least -1"),
        ({"cpu_threads": -1}, "cpu_threads", "between 0 and 1024"),
        ({"cpu_threads": 1025}, "cpu_threads", "between 0 and 1024"),
        ({"seed": 2**64}, "seed", "seed="),
        ({"device": "cpu"}, "device", "device found is cuda"),
        ({"kernels": "cpu"}, "kernels", "do not run on a GPU"),
        ({"load_format": "gguf"}, "load_format", "holds safetensors"),
    ],
)
def test_limits_are_named(options: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(**options)
    assert caught.value.field == field
    assert said in str(caught.value)


def test_defaults_give_way_to_what_was_asked() -> None:
    assert resolved(max_num_batched_tokens=16).scheduler.max_num_seqs == 16
    assert resolved(max_num_seqs=10_000).scheduler.max_num_batched_tokens == 10_000
    long = hf(max_position_embeddings=20_000)
    assert resolved(raw=long, enable_chunked_prefill=False).scheduler.max_num_batched_tokens == 20_000
    assert resolved(async_scheduling=False).scheduler.steps_in_flight == 1
    assert resolved(num_scheduler_steps=3).scheduler.burst_steps == 3
    assert resolved(max_inter_token_ms=0).scheduler.max_inter_token_seconds == 0.0
    assert resolved(max_inter_token_ms="12.5").scheduler.max_inter_token_seconds == 0.0125
    assert resolved(enforce_eager=True).device.graphs == "none"
    assert not resolved(enable_prefix_caching=False).cache.enable_prefix_caching


def test_fit_context() -> None:
    fixed, auto = EngineArgs(), EngineArgs.from_options(max_model_len="auto")
    config = resolve(auto, FOLDER, hf(), GPU)
    assert config.model.max_model_len == 4096
    assert fit_context(config, auto, 5000) is config
    assert fit_context(config, auto, 1000).model.max_model_len == 1000
    for args, room in ((fixed, 1000), (auto, 0)):
        with pytest.raises(ConfigError, match=f"max_model_len=4096, but the KV cache holds only {room}"):
            fit_context(config, args, room)
    with pytest.raises(ConfigError, match="raise gpu_memory_utilization or kv_cache_memory_bytes"):
        fit_context(config, fixed, 1000)
    with pytest.raises(ConfigError, match=r"set it to auto\), or raise kv_cache_memory_bytes$"):
        fit_context(resolve(fixed, FOLDER, hf(), CPU), fixed, 1000)


def test_memory_is_told_in_gib() -> None:
    with pytest.raises(ConfigError, match=r"kv_cache_memory_bytes=\d+ is 100\.0 GiB, of \d+\.\d GiB of memory"):
        resolve(EngineArgs(kv_cache_memory_bytes=100 * GIB), FOLDER, hf(), CPU)


def test_default_sampling(tmp_path: Path) -> None:
    model = hf({"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 77, "do_sample": True, "top_k": None})
    assert default_sampling(EngineArgs(), model) == {"temperature": 0.6, "top_p": 0.9, "max_tokens": 77}
    assert default_sampling(EngineArgs(generation_config="vllm"), model) == {}
    changed = EngineArgs(generation_config="vllm", override_generation_config={"top_k": 5, "max_tokens": 3})
    assert default_sampling(changed, model) == {"top_k": 5, "max_tokens": 3}
    with pytest.raises(ConfigError, match="temprature"):
        default_sampling(EngineArgs(override_generation_config={"temprature": 1}), model)
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        default_sampling(EngineArgs(generation_config=str(tmp_path)), model)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.1}))
    assert default_sampling(EngineArgs(generation_config=str(tmp_path)), model) == {"temperature": 0.1}


def test_options_for_the_other_kind_of_device_are_named() -> None:
    args = EngineArgs(gpu_memory_utilization=0.5, warmup="full", cpu_threads=3, enforce_eager=True)
    assert idle_options(args, "cpu") == ["gpu_memory_utilization", "warmup"]
    assert idle_options(args, "cuda") == ["cpu_threads"]
    assert idle_options(EngineArgs(), "cpu") == idle_options(EngineArgs(), "cuda") == []


def test_gpus_that_the_user_did_not_name_are_not_named_as_idle() -> None:
    def idle(args: EngineArgs) -> list[list[str]]:
        engines = options_by_engine(dataclasses.asdict(args))
        told = [{name: options[name] for name in ("engine_number", "device_ids")} for options in engines]
        assert all(own["device_ids"] for own in told)
        return [idle_options(dataclasses.replace(args, **own), "cpu") for own in told]

    assert idle(EngineArgs(data_parallel_size=2)) == [[], []]
    assert idle(EngineArgs(data_parallel_size=2, device_ids=[3, 2])) == [["device_ids"], ["device_ids"]]


@pytest.mark.parametrize(
    ("options", "count", "ids"),
    [
        ({"tensor_parallel_size": 2}, 2, ()),
        ({"tensor_parallel_size": 2, "device_ids": "1,0"}, 2, (1, 0)),
        ({"tensor_parallel_size": 2, "device_ids": [0, 0]}, 1, (0, 0)),
        ({"pipeline_parallel_size": 2, "data_parallel_size": 2, "device_ids": "0,1,2,3"}, 4, (0, 1, 2, 3)),
        ({"device_ids": "3"}, 4, (3,)),
    ],
)
def test_gpus_of_ranks(options: dict[str, Any], count: int, ids: tuple[int, ...]) -> None:
    config = resolve(EngineArgs.from_options(**options), FOLDER, hf(), replace(GPU, count=count))
    assert config.device.ids == ids
    assert config.scheduler.steps_in_flight == (3 if config.parallel.pipeline_parallel_size == 2 else 2)


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size", "2 GPUs are needed here, 1 are there"),
        ({"data_parallel_size": 3}, "data_parallel_size", "3 GPUs are needed"),
        ({"tensor_parallel_size": 2, "device_ids": "0,1"}, "device_ids", "there are 1 GPUs"),
        ({"tensor_parallel_size": 2, "device_ids": "0"}, "device_ids", "is to name 2 GPUs"),
        ({"device_ids": "first"}, "device_ids", "not a whole number"),
        ({"device_ids": "-1"}, "device_ids", "by their numbers"),
    ],
)
def test_gpus_that_are_not_there(options: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        resolve(EngineArgs.from_options(**options), FOLDER, hf(), GPU)
    assert raised.value.field == field


def test_gpus_are_dealt_to_engines() -> None:
    assert devices_by_engine([], 2, 2) == [[0, 1], [2, 3]]
    assert devices_by_engine([3, 2, 1, 0], 2, 2) == [[3, 2], [1, 0]]
    assert devices_by_engine([0], 1, 3) == [[0], [0], [0]]
