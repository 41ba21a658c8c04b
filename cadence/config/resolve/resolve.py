"""One pure function: (what the user asked, what the model is, what the device can) -> EngineConfig."""

from __future__ import annotations

import dataclasses
import logging
import math

from cadence.config.args import EngineArgs
from cadence.config.caps import Caps
from cadence.config.context_length import context_limit, model_context_length, window_of
from cadence.config.encoder_config import resolve_encoder
from cadence.config.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    SchedulerConfig,
    TokenizerConfig,
)
from cadence.config.files.sharded_state import SHARDED, check_ranks
from cadence.config.hf import HFConfig
from cadence.config.lora import resolve_lora
from cadence.config.media_config import resolve_media
from cadence.config.media_intake import resolve_intake
from cadence.config.parallel import (
    ParallelConfig,
    assigned_devices,
    check_devices,
    check_shared,
    devices_of,
    read_partition,
    resolve_parallel,
    shares_experts,
)
from cadence.config.ranges import check_budget, within
from cadence.config.reference import ModelFiles
from cadence.config.resolve.both_ways import both_ways
from cadence.config.resolve.dtypes import kv_dtype, model_dtype, multiplies_halves
from cadence.config.resolve.quantization import resolve_quantization
from cadence.config.resolve.through_transformers import check_asked
from cadence.config.resolve_pooling import resolve_pooling
from cadence.config.speculative import DraftSource, SpeculativeConfig, check_fits, resolve_speculative
from cadence.config.speculative_options import SpeculativeOptions
from cadence.config.structured_options import read_structured
from cadence.core.errors import ConfigError

logger = logging.getLogger("cadence.config")

GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """What depends on the kind of device."""

    max_num_seqs: int
    max_num_batched_tokens: int
    steps_in_flight: int  # a CPU computes in the thread that plans: planning ahead would only waste a step at the end
    burst_steps: int
    burst_seconds: float  # a CPU's burst is cut short when a request arrives, so its length has no limit
    max_inter_token_ms: float
    min_prompt_tokens: int  # a step of half as many takes about as long
    graphs: str  # a row more costs a CPU as much as the others, so it pads nothing


DEFAULTS = {
    "cuda": Defaults(
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        steps_in_flight=2,
        burst_steps=8,
        burst_seconds=0.01,
        max_inter_token_ms=60.0,
        min_prompt_tokens=256,
        graphs="padded",
    ),
    "cpu": Defaults(
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        steps_in_flight=1,
        burst_steps=16,
        burst_seconds=math.inf,
        max_inter_token_ms=250.0,
        min_prompt_tokens=32,
        graphs="exact",
    ),
}
IDLE = {  # options that are for the other kind of device
    "cpu": ("gpu_memory_utilization", "warmup", "device_ids"),
    "cuda": ("cpu_threads",),
}
_CACHE_SIZES = {  # what makes a KV cache larger
    "cpu": "kv_cache_memory_bytes",
    "cuda": "gpu_memory_utilization or kv_cache_memory_bytes",
}
STAGE_TOKENS = 128  # of a step on a CPU with stages: prompts come in chunks, so that every stage has one
WORKER_BURST_S = 0.03  # seconds of a burst in a CPU's worker process
LARGE_GPU = 70 * GIB  # bytes of memory from which on there are, by default, ...
LARGE_GPU_SEQS = 1024  # ... so many requests running at once
LARGE_GPU_OFFLINE_TOKENS = 16384  # ... and so many tokens in a step
MOST_HEAD_DIM = 256  # of models with long contexts


@dataclasses.dataclass(frozen=True, slots=True)
class ResolveInputs:
    """What `resolve`, a pure function, is told of the environment and of the caller."""

    tokenizer_files: ModelFiles | None = None  # None = with the model
    cpu_kv_bytes: int = 0  # env.cpu_kv_cache_bytes(); 0 = not asked
    cpu_isa: str = "auto"  # env.cpu_isa()
    compiler: bool = False  # env.has_compiler()
    draft: DraftSource | None = None  # what speculative_config names
    offline: bool = False  # requests come many at once, and no stream waits for a single token


def resolve(
    args: EngineArgs, files: ModelFiles, hf: HFConfig, caps: Caps, inputs: ResolveInputs | None = None
) -> EngineConfig:
    inputs = inputs or ResolveInputs()
    halves = multiplies_halves(args, caps, inputs.cpu_isa, inputs.compiler)
    model, quantization = _model(args, files, hf, caps, halves), resolve_quantization(args, files, hf)
    cache_dtype = kv_dtype(args, model, quantization, caps.kind, halves)
    scheduler, device = _scheduler(args, caps, model.max_model_len, inputs.offline), _device(args, caps.kind, inputs)
    model, scheduler = _with_media(model, _with_encoder(scheduler, args, model), args)
    if shares_experts(args, hf):
        check_shared(args, model.dtype, caps.kind)
        scheduler = dataclasses.replace(scheduler, burst_steps=1, burst_seconds=0.0)
        device = dataclasses.replace(device, warmup="none")  # every forward is one of all engines
    _check_tables(model, scheduler, caps)
    speculative, pooling = _speculative(args, model, scheduler, inputs.draft), resolve_pooling(args, hf)
    _check_drafts(args, hf, speculative, pooling.generates)
    cache = _cache(args, caps, inputs.cpu_kv_bytes, cache_dtype)
    if pooling.sees_both_ways:
        scheduler, cache = both_ways(args, scheduler, cache, model.max_model_len, caps.kind)
    if caps.kind == "cuda":
        check_devices(args, caps.count)
    return EngineConfig(
        model=model,
        tokenizer=TokenizerConfig(
            files=inputs.tokenizer_files or files,
            skip=args.skip_tokenizer_init,
            chat_template=args.chat_template or "",
            escape_control_tokens=args.escape_control_tokens,
            mode=args.tokenizer_mode,
        ),
        load=LoadConfig(
            _load_format(args, files),
            args.use_tqdm_on_load,
            quantization,
            read_partition(args),
            args.enable_expert_parallel,
        ),
        cache=cache,
        scheduler=scheduler,
        device=device,
        speculative=speculative,
        structured=read_structured(args.structured_outputs_config),
        lora=resolve_lora(args),
        parallel=resolve_parallel(args),
        pooling=pooling,
        intake=resolve_intake(args),
    )


def _check_drafts(args: EngineArgs, hf: HFConfig, speculative: SpeculativeConfig, generates: bool) -> None:
    check_asked(args, hf, speculative.method)
    if speculative.enabled and not generates:
        message = f"speculative_config: {hf.architecture} is served without generating text"
        raise ConfigError(message, "speculative_config")


def idle_options(args: EngineArgs, kind: str) -> list[str]:
    """Options that were given and mean nothing on this kind of device."""
    default = EngineArgs()
    given = [name for name in IDLE[kind] if getattr(args, name) != getattr(default, name)]
    return [name for name in given if name != "device_ids" or args.device_ids != assigned_devices(args)]


def fit_context(config: EngineConfig, args: EngineArgs, kv_tokens: int) -> EngineConfig:
    """Called once the KV cache is sized: `kv_tokens` is the longest request it holds.

    With max_model_len=auto the limit shrinks to that; otherwise a cache too small for one request is an error.
    """
    wanted = config.model.max_model_len
    if kv_tokens >= wanted:
        return config
    if args.max_model_len != -1 or kv_tokens < 1:
        raise ConfigError(
            f"max_model_len={wanted}, but the KV cache holds only {kv_tokens} tokens; "
            f"lower max_model_len (or set it to auto), or raise {_CACHE_SIZES[config.device.kind]}",
            "max_model_len",
        )
    logger.warning("max_model_len is %d: what the KV cache holds of the model's %d", kv_tokens, wanted)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, max_model_len=kv_tokens))


def _check_tables(model: ModelConfig, scheduler: SchedulerConfig, caps: Caps) -> None:
    """Each running request has room for all its tokens, and each position an angle per pair of a head's entries: a
    context beyond all memory is seen here, before anything is allocated."""
    needed = model.max_model_len * (scheduler.max_num_seqs + 1 + MOST_HEAD_DIM) * 4
    if needed > caps.total_memory // 2:
        raise ConfigError(
            f"max_model_len={model.max_model_len}, the context of {model.hf.source}, takes {needed / GIB:.1f} GiB of "
            f"tables alone, and the device has {caps.total_memory / GIB:.1f} GiB; set max_model_len lower",
            "max_model_len",
        )


def _model(args: EngineArgs, files: ModelFiles, hf: HFConfig, caps: Caps, halves: bool) -> ModelConfig:
    limit, usual = context_limit(hf), model_context_length(hf)
    if args.disable_sliding_window:
        limit = min(limit, window_of(hf) or limit)
    wanted = min(limit, usual) if args.max_model_len in (None, -1) else args.max_model_len
    assert wanted is not None
    if not 1 <= wanted <= limit:
        raise ConfigError(
            f"max_model_len={wanted} is not between 1 and {limit}, {_why(limit, hf)}",
            "max_model_len",
        )
    return ModelConfig(
        files=files,
        hf=hf,
        dtype=model_dtype(args, files, hf, caps, halves),
        max_model_len=wanted,
        seed=args.seed,
        max_logprobs=args.max_logprobs,
        logprobs_mode=args.logprobs_mode,
        encoder=resolve_encoder(hf),
        media=resolve_media(hf, args.enable_prompt_embeds, wanted, resolve_intake(args)),
    )


def _why(limit: int, hf: HFConfig) -> str:
    if limit < model_context_length(hf):
        return f"the window or chunk of {hf.name}, which disable_sliding_window does not let slide"
    return f"the length {hf.name} was made for (a model extended by rope scaling says so in hf_overrides)"


def _load_format(args: EngineArgs, files: ModelFiles) -> str:
    if args.load_format in ("auto", "dummy"):
        return args.load_format
    if args.load_format == SHARDED:
        check_ranks(files.directory, args.tensor_parallel_size)
        if args.enable_expert_parallel:
            message = "enable_expert_parallel: files of load_format=sharded_state have a part of every expert"
            raise ConfigError(message, "enable_expert_parallel")
        return SHARDED
    found = _stored_format(files)
    if args.load_format != found:
        raise ConfigError(f"load_format={args.load_format}, but {files.name} holds {found} weights", "load_format")
    return found


def _stored_format(files: ModelFiles) -> str:
    if files.gguf is not None:
        return "gguf"
    saved = any(files.directory.glob("pytorch_model*.bin")) and not any(files.directory.glob("*.safetensors"))
    return "pt" if saved else "safetensors"


def usual_cpu_kv_bytes(total_memory: int) -> int:
    """Of the KV cache on a CPU, where nothing is said of it."""
    return min(4 * GIB, total_memory // 4)


def _cache(args: EngineArgs, caps: Caps, cpu_kv_bytes: int, dtype: str) -> CacheConfig:
    block_size = 16 if args.block_size is None else args.block_size
    kv_bytes = args.kv_cache_memory_bytes or 0
    if kv_bytes > caps.total_memory:
        raise ConfigError(
            f"kv_cache_memory_bytes={kv_bytes} is {kv_bytes / GIB:.1f} GiB, "
            f"of {caps.total_memory / GIB:.1f} GiB of memory",
            "kv_cache_memory_bytes",
        )
    if caps.kind == "cpu" and not kv_bytes:
        kv_bytes = cpu_kv_bytes or usual_cpu_kv_bytes(caps.total_memory)
    return CacheConfig(
        block_size=block_size,
        enable_prefix_caching=args.enable_prefix_caching is not False,
        gpu_memory_utilization=args.gpu_memory_utilization,
        kv_cache_memory_bytes=kv_bytes,
        num_blocks_override=args.num_gpu_blocks_override or 0,
        dtype=dtype,
    )


def _scheduler(args: EngineArgs, caps: Caps, max_model_len: int, offline: bool) -> SchedulerConfig:
    kind, chunked = caps.kind, args.enable_chunked_prefill is not False
    defaults = _defaults(kind, resolve_parallel(args))
    large = kind == "cuda" and caps.total_memory >= LARGE_GPU
    rows, budget = args.max_num_seqs, args.max_num_batched_tokens
    if budget is None:
        usual = LARGE_GPU_OFFLINE_TOKENS if large and offline else defaults.max_num_batched_tokens
        budget = max(usual, rows or 0, 0 if chunked else max_model_len)
    if rows is None:
        rows = min(LARGE_GPU_SEQS if large else defaults.max_num_seqs, max(budget, 1))
    within("long_prefill_token_threshold", args.long_prefill_token_threshold, 0, max_model_len)
    check_budget(budget, rows)
    if not chunked and budget < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is below max_model_len={max_model_len}, and with "
            "enable_chunked_prefill=False a prompt has to fit in one step",
            "max_num_batched_tokens",
        )
    depth = 1 if args.async_scheduling is False else max(defaults.steps_in_flight, 1 + bool(args.async_scheduling))
    asked_steps = args.num_scheduler_steps
    gap_ms = defaults.max_inter_token_ms if args.max_inter_token_ms is None else args.max_inter_token_ms
    return SchedulerConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=budget,
        policy=args.scheduling_policy,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        steps_in_flight=depth,
        num_stages=args.pipeline_parallel_size,
        burst_steps=asked_steps or defaults.burst_steps,
        burst_seconds=0.0 if asked_steps else defaults.burst_seconds,
        max_inter_token_seconds=gap_ms / 1e3,
        min_prompt_tokens=defaults.min_prompt_tokens,
        adapter_slots=args.max_loras if args.enable_lora else 0,
    )


def _with_media(
    model: ModelConfig, scheduler: SchedulerConfig, args: EngineArgs
) -> tuple[ModelConfig, SchedulerConfig]:
    """The encoder cache has room for what two steps encode, and always for one content."""
    if not model.media.exists:
        return model, scheduler
    step = min(scheduler.max_num_batched_tokens, model.max_model_len)
    if scheduler.enable_chunked_prefill:
        step = min(step, scheduler.long_prefill_token_threshold or step)
    budget = args.max_num_encoder_tokens or scheduler.max_num_batched_tokens
    cache = max(2 * budget, model.media.longest)
    model = dataclasses.replace(model, media=dataclasses.replace(model.media, step=step))
    return model, dataclasses.replace(scheduler, max_num_encoder_tokens=budget, encoder_cache=cache)


def _with_encoder(scheduler: SchedulerConfig, args: EngineArgs, model: ModelConfig) -> SchedulerConfig:
    """By default a step has room for as many positions of encoders as for tokens, and always for one input."""
    budget, encoder = args.max_num_encoder_tokens, model.encoder
    if not encoder.exists:
        if budget is not None and not model.media.exists:
            logger.warning("the model has no encoder: max_num_encoder_tokens has no effect")
        return scheduler
    if budget is None:
        budget = max(scheduler.max_num_batched_tokens, encoder.max_len)
    return dataclasses.replace(scheduler, max_encoder_len=encoder.max_len, max_num_encoder_tokens=budget)


def _defaults(kind: str, parallel: ParallelConfig) -> Defaults:
    """A CPU whose forwards run in other processes is planned for ahead, as a GPU is; what was asked of it runs to its
    end, so a burst is no longer than a new request may wait."""
    if kind == "cpu" and parallel.has_workers:
        stages, defaults = parallel.pipeline_parallel_size, DEFAULTS["cpu"]
        tokens = defaults.max_num_batched_tokens if stages == 1 else STAGE_TOKENS
        return dataclasses.replace(
            defaults, steps_in_flight=1 + stages, max_num_batched_tokens=tokens, burst_seconds=WORKER_BURST_S
        )
    ahead = 0 if parallel.pipeline_parallel_size == 1 else 1 + parallel.pipeline_parallel_size
    defaults = DEFAULTS[kind]
    return dataclasses.replace(defaults, steps_in_flight=max(defaults.steps_in_flight, ahead))


def _speculative(
    args: EngineArgs, model: ModelConfig, scheduler: SchedulerConfig, draft: DraftSource | None
) -> SpeculativeConfig:
    config = resolve_speculative(SpeculativeOptions.read(args.speculative_config), model.hf, draft)
    check_fits(config, model.max_model_len, scheduler.max_num_batched_tokens)
    return config


def _device(args: EngineArgs, kind: str, inputs: ResolveInputs) -> DeviceConfig:
    if args.device not in ("auto", kind):
        raise ConfigError(f"device={args.device} was asked for, but the device found is {kind}", "device")
    if args.kernels == "cpu" and kind == "cuda":
        raise ConfigError("kernels=cpu do not run on a GPU; use auto, triton or reference", "kernels")
    return DeviceConfig(
        kind=kind,
        kernels=args.kernels,
        graphs="none" if args.enforce_eager else DEFAULTS[kind].graphs,
        deterministic=args.deterministic,
        sleep_mode=args.enable_sleep_mode,
        cpu_threads=args.cpu_threads,
        cpu_isa=inputs.cpu_isa,
        warmup=args.warmup or ("none" if inputs.offline else "lazy"),
        ids=devices_of(args),
    )
