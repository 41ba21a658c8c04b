"""The parent, seen from a process that it has started."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from cadence.process.ended import PARENT_GONE

_PR_SET_PDEATHSIG = 1


def open_wire() -> socket.socket:
    """Our end of the socketpair to the parent, which came as standard input. That becomes /dev/null: children of this
    process must not hold the wire open. This process ends with its parent."""
    end_with_parent()
    wire = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return wire


def end_with_parent() -> None:
    """The system kills this process when the thread that made it ends, also where this one is stopped. A parent that is
    gone by now shows as the end of the wire."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def watch_parent(wire: socket.socket) -> None:
    """Exits when the parent has closed its end, whatever this process is doing and whatever is left to read."""
    poll = select.poll()
    poll.register(wire, 0)  # hang-ups are told unasked

    def watch() -> None:
        if any(event & select.POLLHUP for _, event in poll.poll()):
            os._exit(PARENT_GONE)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def start_heartbeat(beat: Callable[[], None], every_s: float) -> None:
    """By a thread of its own: also while weights load and while a step runs. OSError ends it: the parent is gone."""

    def run() -> None:
        while True:
            try:
                beat()
            except OSError:
                return
            time.sleep(every_s)

    threading.Thread(target=run, name="heartbeat", daemon=True).start()
