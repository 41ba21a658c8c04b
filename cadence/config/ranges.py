"""What values options may have, whatever the model and the device: checked as soon as they are given."""

from __future__ import annotations

from typing import Protocol

from cadence.core.errors import ConfigError

MOST_BURST_STEPS = 64
MOST_CPU_THREADS = 1024
MOST_RANKS = 1024

RANGES: dict[str, tuple[int, int | None]] = {  # least and most; None = no limit
    "seed": (-(2**63), 2**64 - 1),
    "max_logprobs": (-1, None),
    "block_size": (8, 256),
    "max_num_seqs": (1, None),
    "max_num_batched_tokens": (1, None),
    "max_num_encoder_tokens": (1, None),
    "mm_processor_cache_gb": (0, 2**20),
    "long_prefill_token_threshold": (0, None),
    "num_scheduler_steps": (1, MOST_BURST_STEPS),
    "max_inter_token_ms": (0, None),
    "kv_cache_memory_bytes": (0, None),
    "num_gpu_blocks_override": (0, None),
    "max_loras": (1, 1024),
    "max_lora_rank": (1, 1024),
    "max_cpu_loras": (1, None),
    "cpu_threads": (0, MOST_CPU_THREADS),
    "tensor_parallel_size": (1, MOST_RANKS),
    "pipeline_parallel_size": (1, MOST_RANKS),
    "data_parallel_size": (1, MOST_RANKS),
    "engine_number": (0, MOST_RANKS - 1),
    "nnodes": (1, MOST_RANKS),
    "node_rank": (0, MOST_RANKS - 1),
    "master_port": (1, 65535),
}


class RangedOptions(Protocol):
    """Those of `EngineArgs` that are more than a number between two others."""

    block_size: int | None
    gpu_memory_utilization: float
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None


def check(args: RangedOptions) -> None:
    for name, (low, high) in RANGES.items():
        if (value := getattr(args, name)) is not None:
            within(name, value, low, high)
    if args.block_size is not None and args.block_size & (args.block_size - 1):
        raise ConfigError(f"block_size={args.block_size} is not a power of two", "block_size")
    if not 0 < args.gpu_memory_utilization <= 1:
        raise ConfigError(
            f"gpu_memory_utilization={args.gpu_memory_utilization} is not above 0 and at most 1",
            "gpu_memory_utilization",
        )
    if args.max_model_len is not None and args.max_model_len != -1 and args.max_model_len < 1:
        raise ConfigError(f"max_model_len={args.max_model_len} is not at least 1 (or auto)", "max_model_len")
    if args.max_num_seqs is not None and args.max_num_batched_tokens is not None:
        check_budget(args.max_num_batched_tokens, args.max_num_seqs)


def check_budget(budget: int, rows: int) -> None:
    if budget < rows:
        raise ConfigError(
            f"max_num_batched_tokens={budget} is below max_num_seqs={rows}: each running request needs a token a step",
            "max_num_batched_tokens",
        )


def within(name: str, value: float, low: int, high: int | None) -> None:
    if value < low or (high is not None and value > high):
        limit = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(f"{name}={value} is not {limit}", name)
