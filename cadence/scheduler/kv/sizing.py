"""How many blocks a request needs, and how long a request fits into the blocks. Arithmetic only.

`in_flight` is the most tokens of one request in steps that have not returned (`TokenBudget.in_flight`), `source_len`
the most positions that it brings for cross attention.
"""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.core.model.kv_spec import KVLayout
from cadence.scheduler.kv.coordinator import KVCoordinator


def blocks_needed(layout: KVLayout, num_tokens: int, in_flight: int, source_len: int = 0) -> int:
    """Blocks (the null block included) that one request of `num_tokens` needs to run to its end."""
    return KVCoordinator(layout, in_flight).peak_blocks(num_tokens, source_len) + 1


def max_len_that_fits(layout: KVLayout, num_blocks: int, in_flight: int, upper: int, source_len: int = 0) -> int:
    """Longest request, at most `upper` tokens, that a pool of `num_blocks` can run to its end; 0 = none."""
    coordinator = KVCoordinator(layout, in_flight)
    low, high = 0, upper
    while low < high:
        middle = (low + high + 1) // 2
        if coordinator.peak_blocks(middle, source_len) < num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def check_pool(layout: KVLayout, num_blocks: int, in_flight: int, max_model_len: int, source_len: int = 0) -> None:
    """Refuses a pool in which the oldest request could be unable to finish."""
    needed = blocks_needed(layout, max_model_len, in_flight, source_len)
    if num_blocks >= needed:
        return
    fits = max_len_that_fits(layout, num_blocks, in_flight, max_model_len, source_len)
    beside = f" with {source_len} positions of an encoder's output" if source_len else ""
    raise ConfigError(
        f"max_model_len={max_model_len}{beside} needs a pool of {needed} KV blocks of {layout.block_size} tokens, "
        f"but num_blocks={num_blocks}: set max_model_len to at most {fits}, "
        "or give the KV cache more memory (gpu_memory_utilization, kv_cache_memory_bytes)",
        field="max_model_len",
    )
