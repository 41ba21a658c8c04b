"""What an engine may leave behind when it is gone, and what it listens on while it is there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_LISTENING = "0A"  # the state in /proc/net/tcp


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def still_running(processes: Iterable[psutil.Process], within_s: float = 5.0) -> list[psutil.Process]:
    """Those that do not end in time."""
    ends = time.monotonic() + within_s
    left = list(processes)
    while left := [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]:
        if time.monotonic() > ends:
            break
        time.sleep(0.02)
    return left


def shared_files() -> set[str]:
    return set(os.listdir("/dev/shm"))


def listening(processes: Iterable[psutil.Process]) -> list[tuple[str, str]]:
    """(name of the process, address) of every listening socket of TCP, by the inodes of their descriptors."""
    by_inode = _listening_inodes()
    found = []
    for process in processes:
        for inode in _inodes(process.pid):
            if inode in by_inode:
                found.append((" ".join(process.cmdline())[:80] or process.name(), by_inode[inode]))
    return found


def is_local(address: str) -> bool:
    """An address as /proc/net has it: 4 or 16 bytes, in words of the host's order."""
    words = bytes.fromhex(address)
    packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    mapped = packed[12:] if packed.startswith(b"\0" * 10 + b"\xff\xff") else packed
    return mapped[:1] == b"\x7f" if len(mapped) == 4 else packed == b"\0" * 15 + b"\1"


def _listening_inodes() -> dict[str, str]:
    found = {}
    for name in ("tcp", "tcp6"):
        path = Path("/proc/net") / name
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            words = line.split()
            if words[3] == _LISTENING:
                found[words[9]] = words[1].partition(":")[0]
    return found


def _inodes(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    found = []
    try:
        for entry in folder.iterdir():
            target = os.readlink(entry)
            if target.startswith("socket:["):
                found.append(target[8:-1])
    except OSError:
        """It has gone meanwhile."""
    return found
