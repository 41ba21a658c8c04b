"""A process that has imported what servers, engines and ranks import, and forks one of them whenever it is told to.

    python -m tests.helpers.warm_process SOCKET PADDING

Each message on the inherited socket is a `Start` with the descriptors that it names; the answer is the number of a
process. That becomes a child of this one's parent, which must be a subreaper meanwhile, and shows the command line that
it stands for: the padding is room for it.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import os
import pickle
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

from tests.helpers.warm_start import Nursery, Start, start_warm

IMPORTED = (
    *("torch", "cadence.executor.worker.carrier", "cadence.engine.core_process", "cadence.engine.llm_engine"),
    *("cadence.entrypoints.cli.serve", "cadence.entrypoints.server.server", "cadence.entrypoints.server.api_process"),
)
MOST_BYTES = 1 << 17  # of a message
MOST_FDS = 64
STARTS_NOBODY = ("cadence.executor.", "cadence.entrypoints.server.api_process")
_ABOVE = 200  # where descriptors wait while others take their numbers
_ARGS = slice(45, 47)  # in /proc/self/stat, after the name: where the command line begins and ends


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
            take_fds(fds, start.fds)
            while os.getppid() == own:
                time.sleep(0.0005)
            return start
        os.waitpid(between, 0)
        channel.send(os.read(reader, 20))
        for fd in (reader, writer, *fds):
            os.close(fd)


def take_fds(given: list[int], wanted: list[int]) -> None:
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
    os.chdir(start.cwd)
    os.sched_setaffinity(0, start.cpus)
    if start.new_session:
        os.setsid()
    if start.env.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    sys.orig_argv = [sys.executable, "-m", start.module, *start.words]  # with which a server replaces itself
    _show(sys.orig_argv)
    sys.argv[1:] = start.words
    warnings.filterwarnings("ignore", module="runpy")  # the module may have been imported
    status = _status_of(start.module)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of a program does
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without taking modules down one by one: their memory is shared


def _status_of(module: str) -> int:
    """Runs it."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _show(words: list[str]) -> None:
    """As this process's command line."""
    first, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARGS])
    line = b"\0".join(word.encode() for word in words)[: end - first - 1]
    ctypes.memmove(first, line.ljust(end - first, b"\0"), end - first)


def run(channel: socket.socket) -> None:
    """Ends with the parent, or as what was started."""
    start = serve(channel)
    if start is None:
        os._exit(0)
    become_warm(start)


def become_warm(start: Start) -> None:
    """As `become`; what it starts is forked, too."""
    if not start.module.startswith(STARTS_NOBODY):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not (forked := os.fork()):
            run(_alone(theirs))
        theirs.close()
        start_warm(Nursery(ours, forked))
    become(start)


def _alone(channel: socket.socket) -> socket.socket:
    """The channel; all other descriptors are closed, the first three lead nowhere."""
    nothing = os.open(os.devnull, os.O_RDWR)
    kept = socket.socket(fileno=fcntl.fcntl(channel.detach(), fcntl.F_DUPFD_CLOEXEC, _ABOVE))
    for number in range(3):
        os.dup2(nothing, number)
    os.closerange(3, _ABOVE)
    os.closerange(kept.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    return kept


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a collection would copy what is shared
    run(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
