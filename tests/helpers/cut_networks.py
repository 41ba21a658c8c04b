"""A network with a cable that can be cut: a namespace of this machine, which needs root and the command ip."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

_CLONE_NEWNET = 0x40000000


class Network:
    """A namespace with a cable to this one's. Another run on this machine has other names and addresses: names are
    drawn from more than anybody uses, and the file that reserves a net is locked while it is in use."""

    def __init__(self) -> None:
        tag = secrets.token_hex(5)
        self.name, self.cable = f"cadence-{tag}", f"cad{tag}"  # a link's name has at most 15 characters
        number, self._reserved = _free_net()
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"
        try:
            self._make()
        except subprocess.CalledProcessError:
            self.remove()
            raise

    def _make(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", f"{self.cable}a", "type", "veth", "peer", "name", f"{self.cable}b", "netns", self.name)
        _ip("addr", "add", f"{self.here}/24", "dev", f"{self.cable}a")
        _ip("link", "set", f"{self.cable}a", "up")
        _ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", f"{self.cable}b")
        for device in (f"{self.cable}b", "lo"):
            _ip("-n", self.name, "link", "set", device, "up")

    def connect(self, port: int) -> socket.socket:
        """From there to a port of this machine, by a thread that goes there and ends."""
        made: list[socket.socket] = []

        def go() -> None:
            with Path("/run/netns", self.name).open() as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_connection((self.here, port), timeout=60))

        thread = threading.Thread(target=go)
        thread.start()
        thread.join()
        return made[0]

    def cut(self) -> None:
        _ip("link", "set", f"{self.cable}a", "down")

    def remove(self) -> None:
        for words in (("link", "del", f"{self.cable}a"), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(*words)
        self._reserved.close()


@pytest.fixture
def network() -> Iterator[Network]:
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need root and the command ip")
    try:
        made = Network()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.remove()


def _free_net() -> tuple[int, IO[str]]:
    """-> a number that no other run has, and the file that keeps it so until it is closed"""
    for number in random.sample(range(1, 255), 254):
        file = Path(tempfile.gettempdir(), f"cadence-net-{number}").open("w")  # noqa: SIM115 - the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number, file
        except BlockingIOError:
            file.close()
    raise OSError("all nets are in use")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
