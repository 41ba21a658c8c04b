"""A second machine, played by processes of this one."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from tests.helpers.processes import children_of


def free_port() -> int:
    """Below those that connections of other processes are given: it stays free until it is listened at."""
    while True:
        port = random.randrange(15000, 32000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


def start_node(
    model: Path, secret: Path, port: int, *flags: str, master: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """The second of two nodes, for two ranks unless `flags` say otherwise. prefix: a command to run it with"""
    command = [*prefix, sys.executable, "-m", "cadence.entrypoints.cli.main", "serve", str(model), "--headless"]
    command += ["--nnodes=2", "--node-rank=1", f"--master-addr={master}", f"--master-port={port}"]
    command += [f"--node-secret-file={secret}", "--tensor-parallel-size=2", "--cpu-threads=1", *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def running(node: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """One that has not ended by itself is killed, and what it has started ends with it."""
    try:
        yield node
    finally:
        node.kill()
        node.communicate()


def ranks_of(node: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of ranks that it has started, in their order."""
    return children_of(node.pid, "cadence.executor.worker_process")
