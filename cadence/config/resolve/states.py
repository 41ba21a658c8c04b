"""What a configuration becomes once it is known how many states there is memory for."""

from __future__ import annotations

import dataclasses
import logging

from cadence.config.engine_config import EngineConfig
from cadence.core.model.state_spec import StateRoom

logger = logging.getLogger("cadence.config")


def fit_states(config: EngineConfig, room: StateRoom) -> EngineConfig:
    """Fewer requests run at once where there are fewer states. A prefix is of no use without a state after it."""
    if not room.rows:
        return config
    scheduler, cache = config.scheduler, config.cache
    if room.rows < scheduler.max_num_seqs:
        logger.warning("max_num_seqs is %d of %d: as many states fit", room.rows, scheduler.max_num_seqs)
        scheduler = dataclasses.replace(scheduler, max_num_seqs=room.rows)
    if cache.enable_prefix_caching and not room.snapshots:
        logger.warning("prefixes are not cached: there is no memory for a snapshot of a state")
        cache = dataclasses.replace(cache, enable_prefix_caching=False)
    return dataclasses.replace(config, scheduler=scheduler, cache=cache)
