"""Commands of pages that need not import torch: each is forked off a process that has, and is asked for by a small
program of the command's name, which is found before it on the PATH.

    python -m tests.docs.warm_commands SOCKET PADDING

A program connects to SOCKET and sends a line of JSON (its words, folder and environment) with its descriptors 0, 1
and 2. It is told the exit status, and passes on the signals it gets; when it is gone, the command is killed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.blocks import ROOT
from tests.helpers.warm_process import IMPORTED, become_warm, take_fds
from tests.helpers.warm_start import PADDING, Start

# name -> what it runs. `python` is forked for that module alone, and started for all else.
COMMANDS = {
    "cadence": "cadence.entrypoints.cli.main",
    "interpreter": "tests.docs.interpreter",
    "python": "cadence.vllm",
}
START_S = 300
_MOST_BYTES = 1 << 17
_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys
if {module!r} == "cadence.vllm":
    if sys.argv[1:3] != ["-m", "cadence.vllm"]:
        os.execv({python!r}, [{python!r}, *sys.argv[1:]])
    del sys.argv[1:3]
wire = socket.socket(socket.AF_UNIX)
wire.connect({address!r})
asked = dict(module={module!r}, words=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ))
def forward(number, frame):
    wire.send(bytes([number]))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, forward)
socket.send_fds(wire, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
status = int(wire.recv(20) or 1)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class WarmCommands:
    """That process, as a test has it: `folder` holds the programs."""

    def __init__(self, folder: Path, enter: list[str], env: dict[str, str]) -> None:
        """enter: what is put before commands that use the network of the pages"""
        self.folder = folder / "warm"
        self.folder.mkdir()
        address = str(folder / "warm.socket")
        for name, module in COMMANDS.items():
            program = self.folder / name
            program.write_text(_CLIENT.format(python=sys.executable, address=address, module=module))
            program.chmod(0o755)
        words = [*enter, sys.executable, "-m", "tests.docs.warm_commands", address, PADDING]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=env)
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], START_S)[0] or not self._process.stdout.readline():
            raise RuntimeError("the process that commands are forked off does not start")

    def close(self) -> None:
        """Commands that still run go on. They hold the other end of `stdout`, so its end is not waited for."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=60)


def serve(listener: socket.socket) -> None:
    """Each command has a process of its own between this one and it, which reports its end. It ends with its parent,
    which holds the other end of its stdin."""
    while listener in select.select([listener, 0], [], [])[0]:
        wire, _ = listener.accept()
        if not os.fork():
            listener.close()
            _supervise(wire)
        wire.close()
        _reap()
    _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue


def _supervise(wire: socket.socket) -> None:
    """Returns never: it ends with the command, or is the command."""
    message, fds, _, _ = socket.recv_fds(wire, _MOST_BYTES, 3)
    while not message.endswith(b"\n"):
        message += wire.recv(_MOST_BYTES)
    asked: dict[str, Any] = json.loads(message)
    command = os.fork()
    if not command:
        wire.close()
        take_fds(fds, [0, 1, 2])
        start = Start(asked["module"], asked["words"], asked["env"], [0, 1, 2], asked["cwd"],
                      os.sched_getaffinity(0), new_session=True)  # fmt: skip
        become_warm(start)
    for fd in fds:
        os.close(fd)
    os._exit(_wait(wire, command))


def _wait(wire: socket.socket, command: int) -> int:
    ended = os.pidfd_open(command)
    while ended not in (ready := select.select([wire, ended], [], [])[0]):
        assert wire in ready
        numbers = wire.recv(1)
        os.kill(command, numbers[0] if numbers else signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with contextlib.suppress(OSError):
        wire.send(str(status).encode())
    return 0


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(16)
    gc.freeze()  # a collection would copy what is shared
    print("ready", flush=True)
    serve(listener)


if __name__ == "__main__":
    main()
