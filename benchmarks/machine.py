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


_ARM_PARTS = {"0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2", "0xd4f": "Neoverse V2"}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            name = line.split(":", 1)[1].strip()
            return _ARM_PARTS.get(name, name)
    return platform.processor()
