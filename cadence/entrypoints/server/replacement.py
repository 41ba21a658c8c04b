"""A server that is stuck replaces itself: the same command in the same process, with the socket that it listens on.

Its pid and its address stay; connections that come meanwhile wait. Open connections and all it had in memory go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence

from cadence.config import env
from cadence.config.serve_options import ServeOptions
from cadence.entrypoints.server.http.listen import bind

MAX_REPLACEMENTS = 3  # by one process; then it ends, and what supervises it decides
logger = logging.getLogger("cadence.server")


class Replacement:
    def __init__(self, command: Sequence[str], bound: socket.socket, count: int) -> None:
        """count: replacements so far"""
        self._command = list(command)
        self._bound = bound
        self._count = count

    def replace(self, last: Callable[[], None]) -> None:
        """Does not return, unless it was replaced too often or the system refuses. last: done before"""
        if self._count >= MAX_REPLACEMENTS:
            logger.error("the server was replaced %d times: the process ends", self._count)
            return
        logger.error("the server is replaced in its process (%d of %d times)", self._count + 1, MAX_REPLACEMENTS)
        last()
        try:
            os.set_inheritable(self._bound.fileno(), True)
            os.execve(self._command[0], self._command, env.replaced_environment(self._bound.fileno(), self._count + 1))
        except OSError as error:
            logger.error("the server could not be replaced (%s): the process ends", error.strerror)


class NoReplacement(Replacement):
    """The process ends where it is stuck."""

    def __init__(self) -> None:
        """It has neither a command nor a socket."""

    def replace(self, last: Callable[[], None]) -> None:
        return


NO_REPLACEMENT = NoReplacement()


def bind_or_inherit(options: ServeOptions) -> tuple[socket.socket, Replacement]:
    """The socket that the server listens on, which may be that of a server that was stuck in this process."""
    descriptor, count = env.take_replaced()
    if count:
        _reap()
        bound = socket.socket(fileno=descriptor)
        bound.set_inheritable(False)
    else:
        bound = bind(options)
    return bound, Replacement([sys.executable, *sys.orig_argv[1:]], bound, count)


def _reap() -> None:
    """The engines of the server that was stuck, which it has killed."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
