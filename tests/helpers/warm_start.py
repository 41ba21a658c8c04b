"""Processes of ranks and engines that need not import torch: they are forked off one that has.

An import costs as much as all else that a small engine of ranks does. What is forked runs the same module with the same
arguments, descriptors and environment, and is a child of this process; its command line is another's. How processes
start, end and die is tested on those that are started as users start them.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import subprocess
import sys
import threading
from functools import cache
from typing import Any

import psutil

from tests.helpers.warm_process import Start

WARM = ("cadence.executor.worker_process", "cadence.executor.remote_rank", "cadence.engine.core_process")
_PR_SET_CHILD_SUBREAPER = 36


class Nursery:
    """The process that forks them. It ends with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.helpers.warm_process", str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)

    def start(self, start: Start, fds: list[int]) -> int:
        """-> the number of a process that is a child of this one"""
        with self._lock:
            adopt = ctypes.CDLL(None).prctl
            adopt(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._channel, [pickle.dumps(start)], fds)
                return int(self._channel.recv(20))
            finally:
                adopt(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@cache
def nursery() -> Nursery:
    return Nursery()


def children() -> list[psutil.Process]:
    """Of this process; the nursery stays."""
    kept = {nursery().process.pid} if nursery.cache_info().currsize else set()
    return [child for child in psutil.Process().children() if child.pid not in kept]


class WarmPopen(subprocess.Popen[Any]):
    """Of commands that are `python -m` one of WARM; others are started as ever."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, *rest: Any) -> None:
        pass_fds, cwd, env, _, _, _, *pipes = rest[:12]
        is_warm = list(args[:2]) == [sys.executable, "-m"] and args[2] in WARM
        if not is_warm or cwd is not None or preexec_fn is not None:
            super()._execute_child(args, executable, preexec_fn, close_fds, *rest)  # type: ignore[misc]
            return
        theirs = (pipes[0], pipes[3], pipes[5])  # of three pairs of (read, write), their ends; -1 = as ours
        standard = [number if given < 0 else given for number, given in enumerate(theirs)]
        environment = dict(os.environ if env is None else env)
        start = Start(args[2], list(args[3:]), environment, [0, 1, 2, *pass_fds], os.sched_getaffinity(0))
        self.pid = nursery().start(start, [*standard, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
