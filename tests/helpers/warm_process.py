"""A process that has imported what ranks and engines import, and forks one of them whenever it is told to.

    python -m tests.helpers.warm_process SOCKET

Each message on the inherited socket is a `Start` with the descriptors that it names; the answer is the process's
number. What is forked becomes a child of this one's parent, which must be a subreaper meanwhile.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import pickle
import runpy
import signal
import socket
import sys
import time
import warnings
from dataclasses import dataclass

IMPORTED = ("torch", "cadence.executor.carrier", "cadence.engine.core", "cadence.engine.llm_engine")
MOST_BYTES = 1 << 17  # of a message
MOST_FDS = 64
_ABOVE = 200  # where descriptors wait while others take their numbers


@dataclass(frozen=True)
class Start:
    """`python -m module *words`"""

    module: str
    words: list[str]
    env: dict[str, str]
    fds: list[int]  # the numbers under which it has the descriptors that come with the message; 0, 1 and 2 first
    cpus: set[int]


def serve(channel: socket.socket) -> Start | None:
    """Returns in every process that is forked, and with None when the parent is gone."""
    while True:
        message, fds, _, _ = socket.recv_fds(channel, MOST_BYTES, MOST_FDS)
        if not message:
            return None
        start: Start = pickle.loads(message)
        reader, writer = os.pipe()
        between = os.fork()  # ends at once: what it has forked then goes to the subreaper
        if not between:
            own = os.getpid()
            if forked := os.fork():
                os.write(writer, str(forked).encode())
                os._exit(0)
            channel.close()
            _take_fds(fds, start.fds)
            while os.getppid() == own:
                time.sleep(0.0005)
            return start
        os.waitpid(between, 0)
        channel.send(os.read(reader, 20))
        for fd in (reader, writer, *fds):
            os.close(fd)


def _take_fds(given: list[int], wanted: list[int]) -> None:
    """All others are closed."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for fd in given]
    os.closerange(3, _ABOVE)
    for fd, number in zip(high, wanted, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def become(start: Start) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(start.env)
    os.sched_setaffinity(0, start.cpus)
    sys.argv[1:] = start.words
    warnings.filterwarnings("ignore", module="runpy")  # the module may have been imported
    runpy.run_module(start.module, run_name="__main__", alter_sys=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in IMPORTED:
        importlib.import_module(name)
    if start := serve(channel):
        become(start)


if __name__ == "__main__":
    main()
