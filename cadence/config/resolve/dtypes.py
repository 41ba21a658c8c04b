"""Which types of numbers a model and its KV cache have."""

from __future__ import annotations

from cadence.config.args import EngineArgs
from cadence.config.caps import Caps
from cadence.config.engine_config import ModelConfig
from cadence.config.files.quantization_names import CHECKPOINT_METHODS
from cadence.config.hf import HFConfig
from cadence.config.quantized import kv_cache_of
from cadence.config.reference import ModelFiles
from cadence.core.errors import ConfigError
from cadence.core.model.kv_spec import SCALED

DTYPE_NAMES = {"half": "float16", "float": "float32"}
KV_DTYPE_NAMES = DTYPE_NAMES | {"int8_per_token_head": "int8", "fp8": "fp8_e4m3", "fp8_per_token_head": "fp8_e4m3"}
FLOAT16_OVERFLOWS = ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")


def multiplies_halves(args: EngineArgs, caps: Caps, cpu_isa: str, compiler: bool) -> bool:
    """Whether this is a CPU that has float16 arithmetic only, and our kernels, which multiply bfloat16 in it."""
    ours = compiler and args.kernels != "reference" and cpu_isa in ("auto", "neon-half")
    return caps.kind == "cpu" and caps.native_fp16 and not caps.native_bf16 and ours


def model_dtype(args: EngineArgs, files: ModelFiles, hf: HFConfig, caps: Caps, halves: bool) -> str:
    """auto: the checkpoint's type, except that float32 is halved on GPUs, quantised files run in bfloat16, and CPUs
    without bfloat16 arithmetic run in float32 all that they could not multiply in float16 as it is."""
    overflows = hf.family in FLOAT16_OVERFLOWS
    dtype = DTYPE_NAMES.get(args.dtype, args.dtype)
    if dtype == "float16" and overflows:
        raise ConfigError(f"dtype=float16: {hf.architecture} overflows it; use bfloat16 or float32", "dtype")
    if dtype != "auto":
        return dtype
    stored = "quantised" if files.gguf is not None else str(hf.get("dtype") or hf.get("torch_dtype") or "float32")
    stored = stored.removeprefix("torch.")
    if caps.kind == "cpu":
        as_halves = halves and stored == "bfloat16" and args.quantization in (None, "none", *CHECKPOINT_METHODS)
        return "bfloat16" if as_halves or (caps.native_bf16 and stored != "float32") else "float32"
    return "float16" if stored == "float16" and not overflows else "bfloat16"


def kv_dtype(args: EngineArgs, model: ModelConfig, quantization: str, kind: str, halves: bool) -> str:
    """Not asked: what a quantised checkpoint was made for, else the model's. Beside weights of a few bits float32 would
    be wasted: half of it does. Of two types as large a CPU gets the one it has arithmetic for."""
    asked, dtype = KV_DTYPE_NAMES.get(args.kv_cache_dtype, args.kv_cache_dtype), model.dtype
    able = kind == "cpu" or args.kernels != "reference"
    if asked == "auto" and able and quantization == "checkpoint" and (made_for := kv_cache_of(model.hf)):
        return made_for
    few_bits = quantization in ("gguf", "checkpoint") and args.dtype == "auto" and dtype == "float32"
    fits = model.hf.family not in FLOAT16_OVERFLOWS
    if asked == "auto" and fits and (few_bits or (halves and dtype == "bfloat16")):
        return "float16"
    if asked in ("auto", dtype):
        return dtype
    if kind != "cpu" and asked not in SCALED:
        raise ConfigError(
            f"kv_cache_dtype={args.kv_cache_dtype}: on a GPU the KV cache has the model's type, here {dtype}, or is "
            f"{', '.join(SCALED)}; leave it at auto, choose one of those, or choose dtype",
            "kv_cache_dtype",
        )
    if kind != "cpu" and args.kernels == "reference":
        message = f"kv_cache_dtype={args.kv_cache_dtype}: on a GPU needs its kernels, not kernels=reference"
        raise ConfigError(message, "kv_cache_dtype")
    return asked
