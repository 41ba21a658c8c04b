"""The settings of the KV cache as labels of a metric, under the names that dashboards know."""

from __future__ import annotations

from cadence.config.engine_config import CacheConfig


def cache_labels(cache: CacheConfig, num_blocks: int) -> dict[str, str]:
    return {
        "block_size": str(cache.block_size),
        "cache_dtype": cache.dtype,
        "enable_prefix_caching": str(cache.enable_prefix_caching),
        "gpu_memory_utilization": str(cache.gpu_memory_utilization),
        "kv_cache_size_tokens": str(num_blocks * cache.block_size),
        "kv_cache_memory_bytes": str(cache.kv_cache_memory_bytes or None),
        "num_gpu_blocks": str(num_blocks),
        "num_gpu_blocks_override": str(cache.num_blocks_override or None),
    }
