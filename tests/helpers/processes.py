"""Processes that others have started. Any of them may end at any moment: one that has is among none of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def command_of(process: psutil.Process) -> str:
    """ "" for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def children_of(pid: int, program: str, recursive: bool = False) -> list[psutil.Process]:
    """Those whose commands name the program, in the order of their numbers."""
    found = psutil.Process(pid).children(recursive)
    return sorted((each for each in found if program in command_of(each)), key=lambda each: each.pid)


def family_of(pid: int) -> list[psutil.Process]:
    """A process and all that it has started."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def resident_bytes(processes: Iterable[psutil.Process]) -> int:
    total = 0
    for each in processes:
        with contextlib.suppress(psutil.Error):
            total += each.memory_info().rss
    return total


def connections_of(processes: Iterable[psutil.Process]) -> list[psutil._common.pconn]:
    """Sockets of TCP and UDP."""
    found: list[psutil._common.pconn] = []
    for each in processes:
        with contextlib.suppress(psutil.Error):
            found += each.net_connections("inet")
    return found
