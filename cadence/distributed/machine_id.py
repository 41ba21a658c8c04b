"""Which machine this is."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """The same for all processes of a machine, until it is started again."""
    return _BOOT.read_text().strip() if _BOOT.exists() else platform.node()


def namespace(kind: str) -> str:
    """Of this process, as "pid" or "net": processes of one container have the same; "" = there are none."""
    path = f"/proc/self/ns/{kind}"
    return os.readlink(path) if os.path.islink(path) else ""
