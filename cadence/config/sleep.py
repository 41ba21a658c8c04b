"""Whether an engine can sleep as it was set up."""

from __future__ import annotations

from cadence.config.engine_config import EngineConfig
from cadence.core.errors import InvalidRequestError


def check_can_sleep(config: EngineConfig, level: int) -> None:
    """A GPU gives no memory back unless it was allocated for that. On a CPU nothing has to be done beforehand."""
    if level and config.device.kind == "cuda" and not config.device.sleep_mode:
        raise InvalidRequestError("sleep: start the engine with enable_sleep_mode", "enable_sleep_mode")
