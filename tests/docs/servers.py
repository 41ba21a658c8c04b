"""The servers that the documents start and ask. Pages that start the same one share it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.docs.blocks import Block
from tests.docs.commands import parse_cadence, split
from tests.docs.network import PORT, Network

DEFAULT = "cadence serve smollm2"
START_S = 600

_WAIT = """
import ssl, sys, time, urllib.request
url, until = sys.argv[1], time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    try:
        urllib.request.urlopen(url, timeout=60, context=ssl._create_unverified_context())
        sys.exit(0)
    except OSError:
        time.sleep(0.1)
sys.exit(1)
"""


@dataclass(slots=True)
class Server:
    command: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> None:
        if self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=120)


class Servers:
    """At most one runs on a port."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._running: dict[int, Server] = {}  # by port
        self._count = 0

    def ensure_default(self, env: dict[str, str]) -> None:
        self.ensure(Block("tests/docs/servers.py", 0, "bash", DEFAULT), self._folder, env)

    def ensure(self, block: Block, folder: Path, env: dict[str, str]) -> None:
        """The server of this block answers: the one that runs already, if it is the same, or a new one."""
        words = _serve_words(block)
        command = " ".join(["cadence", *words, *([f"({folder})"] if "--config" in words else [])])
        url = _ready_url(words, folder)
        port = urlsplit(url).port or PORT
        if port in self._running:
            if command == self._running[port].command and self._running[port].process.poll() is None:
                return
            self._running.pop(port).stop()
        self._running[port] = server = self._start(block, command, folder, env)
        waited = subprocess.Popen([*self._network.enter, sys.executable, "-c", _WAIT, url, str(START_S)])
        while waited.poll() is None and server.process.poll() is None:
            try:
                waited.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
        waited.kill()
        if waited.wait(timeout=120) != 0:
            raise block.error(f"the server does not answer at {url}:\n{server.log.read_text()[-4000:]}")

    def _start(self, block: Block, command: str, folder: Path, env: dict[str, str]) -> Server:
        self._count += 1
        log = self._folder / f"server_{self._count}.log"
        text = re.sub(r"\s*&\s*$", "", re.sub(r"#[^\n'\"]*$", "", block.commands, flags=re.M).strip())
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [*self._network.enter, "bash", "-c", text],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Server(command, process, log)

    def stop(self) -> None:
        while self._running:
            self._running.popitem()[1].stop()


def _serve_words(block: Block) -> list[str]:
    commands = split(block.commands)
    if len(commands) != 1 or commands[0][:2] != ["cadence", "serve"]:
        raise block.error("run: server: the block must be one `cadence serve` command")
    return commands[0][1:]


def _ready_url(words: list[str], folder: Path) -> str:
    flags = parse_cadence(words, folder)
    host = getattr(flags, "host", None) or "127.0.0.1"
    scheme = "https" if getattr(flags, "ssl_certfile", None) else "http"
    path = getattr(flags, "root_path", None) or ""
    return (
        f"{scheme}://{'127.0.0.1' if host == '0.0.0.0' else host}:{getattr(flags, 'port', None) or PORT}{path}/readyz"
    )
