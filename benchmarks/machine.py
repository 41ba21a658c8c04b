"""Names the machine a result was taken on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.split(":", 1)[1].strip()
    return platform.processor()
