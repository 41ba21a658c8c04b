"""Traces of what an engine in this process computes, written by torch's profiler for Perfetto or Chrome to show."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadence.core.errors import ConfigError, InvalidRequestError

logger = logging.getLogger("cadence.engine")

# Options of vLLM's `profiler_config` -> names torch has for them, and their default.
_SWITCHES = {
    "torch_profiler_with_stack": ("with_stack", True),
    "torch_profiler_record_shapes": ("record_shapes", False),
    "torch_profiler_with_memory": ("profile_memory", False),
    "torch_profiler_with_flops": ("with_flops", False),
}
_FOLDER, _GZIP = "torch_profiler_dir", "torch_profiler_use_gzip"
_HARMLESS = ("torch_profiler_dump_cuda_time_total", "ignore_frontend")  # what else is printed, and of which process


class Profiler:
    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` as vLLM has it; {} = not configured, and `start` is refused."""
        self._folder = _checked_folder(config)
        self._gzip = bool(config.get(_GZIP, True))
        self._options: dict[str, Any] = {
            name: bool(config.get(key, default)) for key, (name, default) in _SWITCHES.items()
        }
        self._prefix = ""
        self._running: Any = None  # torch.profiler.profile

    def start(self, device: str, prefix: str | None = None) -> None:
        """`device`: where the engine runs, cpu or cuda. `prefix`: the beginning of the file's name."""
        if self._folder is None:
            example = '{"profiler": "torch", "torch_profiler_dir": "traces"}'
            raise InvalidRequestError(f"profiling needs LLM(..., profiler_config={example})", "profiler_config")
        if self._running is not None:
            raise InvalidRequestError("a profile is being taken already; stop_profile() ends it", "profiler_config")
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
        self._prefix = prefix or "cadence"
        self._running = profile(activities=activities, **self._options)
        self._running.start()

    def stop(self) -> Path:
        """-> the file written."""
        if self._running is None or self._folder is None:
            raise InvalidRequestError("no profile is being taken; start_profile() begins one", "profiler_config")
        running, self._running = self._running, None
        running.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S") + f"-{time.monotonic_ns() % 1_000_000:06d}"
        path = self._folder / f"{self._prefix}.{stamp}.pt.trace.json{'.gz' if self._gzip else ''}"
        running.export_chrome_trace(str(path))
        logger.info("wrote a profile to %s", path)
        return path


def _checked_folder(config: Mapping[str, Any]) -> Path | None:
    known = {"profiler", _FOLDER, _GZIP, *_SWITCHES, *_HARMLESS}
    for name, value in config.items():
        if name not in known and value:
            raise ConfigError(f"profiler_config: {name}={value!r} cannot be honoured here", "profiler_config")
    kind = config.get("profiler")
    if kind is None:
        return None
    if kind != "torch":
        raise ConfigError(f"profiler_config: profiler={kind!r} is not torch", "profiler_config")
    if not config.get(_FOLDER):
        raise ConfigError(f"profiler_config needs {_FOLDER}, the folder for traces", "profiler_config")
    return Path(str(config[_FOLDER])).expanduser()
