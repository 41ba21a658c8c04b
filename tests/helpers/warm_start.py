"""Processes of servers, engines and ranks that need not import torch: they are forked off one that has.

An import costs as much as all else that a small engine does. What is forked runs the same module with the same
arguments, descriptors, folder and environment, shows the same command line, and is a child of this process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import psutil

ENGINES = ("cadence.engine.core_process", "cadence.executor.worker_process")
SERVERS = ("cadence.entrypoints.cli.main", "cadence.entrypoints.server.api_process", "tests.server.engines")
SCRIPTS = ("cadence.vllm",)
TOYS = ("tests.helpers.control_engine", "tests.server.fake_process")
WARM = (*ENGINES, *SERVERS, *SCRIPTS, *TOYS)
PADDING = "." * 2048  # room for a command line
_PR_SET_CHILD_SUBREAPER = 36
_cold_exec = asyncio.create_subprocess_exec


@dataclass(frozen=True)
class Start:
    """`python -m module *words`"""

    module: str
    words: list[str]
    env: dict[str, str]
    fds: list[int]  # the numbers under which it has the descriptors that come with the message; 0, 1 and 2 first
    cwd: str
    cpus: set[int]
    new_session: bool


class Nursery:
    """The process that forks them, as its parent has it. It ends with the parent."""

    def __init__(self, channel: socket.socket, pid: int, process: subprocess.Popen[bytes] | None = None) -> None:
        """process: where it was started, not forked"""
        self._channel = channel
        self.pid = pid
        self._process = process
        self._lock = threading.Lock()

    @classmethod
    def started(cls) -> Nursery:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.helpers.warm_process", str(theirs.fileno()), PADDING]
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        return cls(ours, process.pid, process)

    def start(self, start: Start, fds: list[int]) -> int:
        """-> the number of a process that is a child of this one"""
        with self._lock:
            control = ctypes.CDLL(None).prctl
            control(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._channel, [pickle.dumps(start)], fds)
                return int(self._channel.recv(20))
            finally:
                control(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@cache
def _held() -> list[Nursery]:
    """The nursery of this process, once there is one."""
    return []


def _nursery() -> Nursery:
    if not _held():
        _held().append(Nursery.started())
    return _held()[0]


def start_warm(nursery: Nursery) -> None:
    """From now on, in this process."""
    _held()[:] = [nursery]
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    asyncio.create_subprocess_exec = warm_exec


def nursery_pids() -> set[int]:
    """Of this process's, if there is one."""
    return {nursery.pid for nursery in _held()}


def children() -> list[psutil.Process]:
    """Of this process, those that have not ended; the nursery stays."""
    kept, found = nursery_pids(), psutil.Process().children()
    return [child for child in found if child.pid not in kept and child.status() != psutil.STATUS_ZOMBIE]


def _is_warm(command: Sequence[Any]) -> bool:
    return list(command[:2]) == [sys.executable, "-m"] and command[2] in WARM


class WarmPopen(subprocess.Popen[Any]):
    """Of commands that are `python -m` one of WARM; others are started as ever."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, *rest: Any) -> None:
        pass_fds, cwd, env, _, _, shell, *pipes = rest[:12]
        if shell or preexec_fn is not None or not _is_warm(args):
            super()._execute_child(args, executable, preexec_fn, close_fds, *rest)  # type: ignore[misc]
            return
        theirs = (pipes[0], pipes[3], pipes[5])  # of three pairs of (read, write), their ends; -1 = as ours
        standard = [number if given < 0 else given for number, given in enumerate(theirs)]
        start = Start(
            args[2],
            list(map(str, args[3:])),
            dict(os.environ if env is None else env),
            [0, 1, 2, *pass_fds],
            os.fspath(cwd or os.getcwd()),
            os.sched_getaffinity(0),
            new_session=rest[17],
        )
        self.pid = _nursery().start(start, [*standard, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class WarmProcess:
    """As asyncio has processes, without pipes. uvloop starts its own without `subprocess`."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self._process = process
        self.pid = process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._ended = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._pidfd, self._end)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return int(await asyncio.shield(self._ended))

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set_result(self._process.wait())


async def warm_exec(*command: Any, **options: Any) -> Any:
    if not _is_warm(command) or subprocess.PIPE in options.values():
        return await _cold_exec(*command, **options)
    return WarmProcess(WarmPopen(command, **options))
