"""How a process has ended, or why it might as well have."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

PARENT_GONE = 3  # exit status of a process whose parent is gone
STOPPED_S = 1.0  # without a sign of life, after which a process that is stopped counts as gone


def how_ended(name: str, status: int | None) -> str:
    """status: as `subprocess` has it; None = it was killed, and the kernel holds on to it"""
    if status is None:
        return f"{name} cannot be killed"
    if status >= 0:
        return f"{name} ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"{name} was ended by {signal.Signals(-status).name}"
    return f"{name} was ended by signal {-status}"


def why_silent(name: str, pid: int, silence_s: float, limit_s: float) -> str:
    """Why a process without a heartbeat for `silence_s` counts as gone; "" = it does not. Other work may keep a process
    from its heartbeats for a while: silence alone ends it only after long, and soon where the system says that it is
    stopped. pid: 0 = on another machine"""
    if silence_s > limit_s:
        return f"{name} gave no heartbeat for {limit_s:g} s"
    if silence_s > STOPPED_S and pid and is_stopped(pid):
        return f"{name} is stopped"
    return ""


def is_stopped(pid: int) -> bool:
    """By a signal or a debugger."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in "Tt"
