"""What follows for an engine whose model's tokens see each other both ways: a prompt is computed whole, in one step,
and what it leaves in the cache is of no use to another."""

from __future__ import annotations

import logging
from dataclasses import replace

from cadence.config.args import EngineArgs
from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.errors import ConfigError

logger = logging.getLogger("cadence.config")

# Tokens of a step on a CPU: what a layer computes of them stays in its caches, and memory is used again. Measured with
# MiniLM on two cores: 13 % less time for 1024 than for 2048; 512 are as slow as these.
_CPU_TOKENS = 1024
# On a GPU, of the usual: a launch costs the host as much for many tokens as for few. Measured with BERT-base on an
# H200, 32,768 for 16,384: 1.29 times the texts of 512 tokens, 1.59 of 128.
_GPU_TIMES = 2
_MEANINGLESS = ("enable_chunked_prefill", "enable_prefix_caching", "long_prefill_token_threshold")


def both_ways(
    args: EngineArgs, scheduler: SchedulerConfig, cache: CacheConfig, max_model_len: int, kind: str
) -> tuple[SchedulerConfig, CacheConfig]:
    """Refuses what cannot be; names what was asked for and has no effect. kind: of the device"""
    if idle := [name for name in _MEANINGLESS if getattr(args, name)]:
        logger.warning("of a model that sees both ways prompts are computed whole: %s has no effect", ", ".join(idle))
    if args.max_num_batched_tokens is None:
        usual = _CPU_TOKENS if kind == "cpu" else _GPU_TIMES * scheduler.max_num_batched_tokens
        scheduler = replace(scheduler, max_num_batched_tokens=max(usual, scheduler.max_num_seqs))
    return _whole_prompts(scheduler, args, max_model_len), replace(cache, enable_prefix_caching=False)


def _whole_prompts(scheduler: SchedulerConfig, args: EngineArgs, max_model_len: int) -> SchedulerConfig:
    """Every prompt that may come fits in one step."""
    asked = args.max_num_batched_tokens
    if asked is not None and asked < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens={asked} is below max_model_len={max_model_len}, and the tokens of this model see "
            "each other both ways: a prompt has to fit in one step",
            "max_num_batched_tokens",
        )
    return replace(
        scheduler,
        max_num_batched_tokens=max(scheduler.max_num_batched_tokens, max_model_len),
        enable_chunked_prefill=False,
        long_prefill_token_threshold=0,
    )
