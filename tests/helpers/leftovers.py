"""What an engine may leave behind when it is gone, and what it listens on while it is there."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.helpers.processes import command_of
from tests.helpers.warm_start import nursery_pids

ENDS_S = 60.0  # for processes and files to go once a test is over
_LISTENING = "0A"  # the state in /proc/net/tcp
_MARK = "CADENCE_STARTED_BY_TESTS"


def mark_processes(environment: MutableMapping[str, str]) -> None:
    """Everything that this process starts from now on is known by its environment, whatever its parent."""
    environment[_MARK] = str(os.getpid())


def marked_processes() -> list[psutil.Process]:
    """All that run, but for this one and those that warm ones are forked off."""
    mark, kept = f"{_MARK}={os.getpid()}".encode(), {os.getpid(), *nursery_pids()}
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) not in kept:
            with contextlib.suppress(OSError, psutil.Error):
                if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(psutil.Process(int(name)))
    return [each for each in found if _is_alive(each)]


@dataclass(frozen=True)
class Traces:
    """Of this process's tests on the machine, at one moment."""

    processes: frozenset[psutil.Process]
    commands: Counter[str]  # of the processes
    files: frozenset[str]  # in /dev/shm
    num_listeners: int  # of this process

    @classmethod
    def now(cls) -> Traces:
        running = marked_processes()
        listeners = listening([psutil.Process()])
        return cls(frozenset(running), Counter(map(_command, running)), frozenset(shared_files()), len(listeners))

    def left_over(self, replaced: bool = False, within_s: float = ENDS_S) -> list[str]:
        """What there is more of, named, after some time to go. Processes are killed, files removed. replaced: a new
        process that runs what one of the old ones ran is none."""
        ends = time.monotonic() + within_s
        while (processes := self._new_processes(replaced)) or self._new_files():
            if time.monotonic() > ends:
                break
            time.sleep(0.05)
        names = [f"process {each.pid} ({_command(each)})" for each in processes]
        for each in processes:
            with contextlib.suppress(psutil.Error):
                each.kill()  # ends also what is stopped
        for file in self._new_files():
            names.append(f"/dev/shm/{file}")
            Path("/dev/shm", file).unlink(missing_ok=True)
        more = len(listening([psutil.Process()])) - self.num_listeners
        return names + ([f"{more} listening sockets of this process"] if more > 0 else [])

    def _new_processes(self, replaced: bool) -> list[psutil.Process]:
        new = [each for each in marked_processes() if each not in self.processes]
        if not replaced:
            return new
        room = self.commands - Counter(_command(each) for each in self.processes if _is_alive(each))
        left = []
        for each in new:
            command = _command(each)
            if room[command] > 0:
                room[command] -= 1
            else:
                left.append(each)
        return left

    def _new_files(self) -> list[str]:
        return abandoned_files(self.files)


def _command(process: psutil.Process) -> str:
    """The program or module, without its arguments."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return "gone"
    return " ".join(words[1:3]) if words[1:2] == ["-m"] else " ".join(words)[:80]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _files_in_use() -> set[str]:
    """Of /dev/shm, by any process."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines = (folder / "maps").read_text(errors="replace").splitlines()
            found |= {line.rpartition("/dev/shm/")[2].split(" (deleted)")[0] for line in lines if "/dev/shm/" in line}
            targets = [os.readlink(entry) for entry in (folder / "fd").iterdir()]
            found |= {target.removeprefix("/dev/shm/") for target in targets if target.startswith("/dev/shm/")}
    return found


def still_running(processes: Iterable[psutil.Process], within_s: float = ENDS_S) -> list[psutil.Process]:
    """Those that do not end in time."""
    ends = time.monotonic() + within_s
    left = list(processes)
    while left := [each for each in left if _is_alive(each)]:
        if time.monotonic() > ends:
            break
        time.sleep(0.02)
    return left


def shared_files() -> set[str]:
    return set(os.listdir("/dev/shm"))


def abandoned_files(before: AbstractSet[str]) -> list[str]:
    """New ones that no process has open: other runs on this machine have files, too, which may go while we look."""
    new = shared_files() - before
    return sorted((new - _files_in_use()) & shared_files()) if new else []


def listening(processes: Iterable[psutil.Process]) -> list[tuple[str, str]]:
    """(name of the process, address) of every listening socket of TCP, by the inodes of their descriptors."""
    by_inode = _listening_inodes()
    found = []
    for process in processes:
        for inode in _inodes(process.pid):
            if inode in by_inode:
                found.append((command_of(process)[:80], by_inode[inode]))
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
