"""A second machine, played by processes of this one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def start_node(
    model: Path, secret: Path, port: int, *flags: str, master: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """The second of two nodes, for two ranks unless `flags` say otherwise. prefix: a command to run it with"""
    command = [*prefix, sys.executable, "-m", "cadence.entrypoints.cli.main", "serve", str(model), "--headless"]
    command += ["--nnodes=2", "--node-rank=1", f"--master-addr={master}", f"--master-port={port}"]
    command += [f"--node-secret-file={secret}", "--tensor-parallel-size=2", "--cpu-threads=1", *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
