"""A server that is stuck replaces itself: the same command in the same process, with the socket that it listens on.

Its pid and its address stay; connections that come meanwhile wait, and those with unfinished answers are handed over.
All else that it had in memory goes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence

from cadence.config import env
from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.http.sockets.listen import bind
from cadence.entrypoints.server.resume.unfinished import HandedOver, decode, encode, read_file, write_file

MAX_REPLACEMENTS = 3  # by one process; then it ends, and what supervises it decides
logger = logging.getLogger("cadence.server")

TakeUnfinished = Callable[[], list[HandedOver]]  # may raise ToldToEnd


class ToldToEnd(Exception):  # noqa: N818
    """The process was, by a signal that its event loop did not read."""


class Replacement:
    handed: Sequence[HandedOver] = ()  # by the server that was replaced

    def __init__(
        self, command: Sequence[str], bound: socket.socket, count: int, handed: Sequence[HandedOver] = ()
    ) -> None:
        """count: replacements so far"""
        self._command = list(command)
        self._bound = bound
        self._count = count
        self.handed = handed

    def replace(self, last: Callable[[], None], take_unfinished: TakeUnfinished = list) -> None:
        """Does not return, unless it was replaced too often or the system refuses. last: done before"""
        if self._count >= MAX_REPLACEMENTS:
            logger.error("the server was replaced %d times: the process ends", self._count)
            return
        logger.error("the server is replaced in its process (%d of %d times)", self._count + 1, MAX_REPLACEMENTS)
        last()
        try:
            os.set_inheritable(self._bound.fileno(), True)
            file = _hand_over(take_unfinished)
            environment = env.replaced_environment(self._bound.fileno(), self._count + 1, file)
            os.execve(self._command[0], self._command, environment)
        except ToldToEnd:
            logger.error("the server was told to end: it is not replaced")
        except OSError as error:
            logger.error("the server could not be replaced (%s): the process ends", error.strerror)


class NoReplacement(Replacement):
    """The process ends where it is stuck."""

    def __init__(self) -> None:
        """It has neither a command nor a socket."""

    def replace(self, last: Callable[[], None], take_unfinished: TakeUnfinished = list) -> None:
        return


NO_REPLACEMENT = NoReplacement()


def bind_or_inherit(options: ServeOptions) -> tuple[socket.socket, Replacement]:
    """The socket that the server listens on, which may be that of a server that was stuck in this process."""
    descriptor, count, file = env.take_replaced()
    handed: list[HandedOver] = []
    if count:
        _reap()
        bound = socket.socket(fileno=descriptor)
        bound.set_inheritable(False)
        handed = _taken(file)
    else:
        bound = bind(options)
    return bound, Replacement([sys.executable, *sys.orig_argv[1:]], bound, count, handed)


def _hand_over(take_unfinished: TakeUnfinished) -> int:
    """-> the descriptor of a file that tells of connections; the next program in this process has it, and these.
    -1 = there are none, or it failed: the server is replaced without them"""
    try:
        handed = take_unfinished()
        return _inherited(handed) if handed else -1
    except ToldToEnd:
        raise
    except Exception:
        logger.exception("no answers are handed over")
        return -1


def _inherited(handed: Sequence[HandedOver]) -> int:
    file = write_file(encode(handed))
    for descriptor in (file, *(one.descriptor for one in handed)):
        os.set_inheritable(descriptor, True)
    return file


def _taken(file: int) -> list[HandedOver]:
    if file < 0:
        return []
    handed = decode(read_file(file))
    for one in handed:
        os.set_inheritable(one.descriptor, False)
    return handed


def _reap() -> None:
    """The engines of the server that was stuck, which it has killed."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
