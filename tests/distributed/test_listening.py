"""What each configuration listens on: this machine alone, unless it was told otherwise."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import LLM
from tests.helpers.headless_node import free_port, running, start_node
from tests.helpers.leftovers import is_local, listening
from tests.helpers.processes import family_of

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 100, "cpu_threads": 1}


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


def strangers(processes: list[psutil.Process]) -> list[tuple[str, str]]:
    """What can be reached from other machines."""
    return [(name, address) for name, address in listening(processes) if not is_local(address)]


def test_addresses_are_read_as_the_system_writes_them() -> None:
    assert is_local("0100007F") and is_local("0000000000000000FFFF00000100007F")
    assert is_local("00000000000000000000000001000000")
    assert not any(map(is_local, ("00000000", "0" * 32, "0200C0C0", "0000000000000000FFFF00000200C0C0")))


@pytest.mark.parametrize("options", [{}, {"pipeline_parallel_size": 2}], ids=["uni", "stages"])
def test_an_engine_listens_to_nobody(directory: Path, options: dict[str, Any]) -> None:
    """Where its ranks are other processes, they have joined without."""
    before = listening(family_of(os.getpid()))
    with LLM(str(directory), **OPTIONS, **options) as llm:
        llm.generate([[5]], use_tqdm=False)
        assert listening(family_of(os.getpid())) == before


@pytest.mark.wide
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_cluster_of_ray_listens_to_nobody_outside(directory: Path) -> None:
    """In a process of its own, so that all that it and its children listen on is the engine's: Ray's own servers."""
    options = OPTIONS | {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    script = f"import sys; from cadence import LLM; llm = LLM({str(directory)!r}, **{options!r}); " + (
        "llm.generate([[5]], use_tqdm=False); print('ready', flush=True); sys.stdin.read(); llm.llm_engine.shutdown()"
    )
    engine = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert engine.stdin is not None and engine.stdout is not None
    try:
        assert engine.stdout.readline().strip() == b"ready"
        processes = family_of(engine.pid)
        assert strangers(processes) == []
        assert listening(processes)
    finally:
        engine.stdin.close()
        engine.wait(200)


@pytest.mark.wide
def test_nodes_listen_at_the_address_they_were_told_and_only_until_all_are_there(
    directory: Path, tmp_path: Path
) -> None:
    secret, port = tmp_path / "secret", free_port()
    secret.write_text("a secret of this launch alone")
    where: dict[str, Any] = {"nnodes": 2, "master_port": port, "node_secret_file": str(secret)}
    with running(start_node(directory, secret, port)) as node:
        with LLM(str(directory), tensor_parallel_size=2, **OPTIONS, **where):
            assert strangers([*family_of(os.getpid()), *family_of(node.pid)]) == []
            assert listening(family_of(node.pid)) == []
        assert node.wait(120) == 0


def test_a_server_listens_on_loopback_by_default(directory: Path) -> None:
    """Its two ranks listen on nothing."""
    port = free_port()
    command = [sys.executable, "-m", "cadence.entrypoints.cli.main", "serve", str(directory), f"--port={port}"]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    server = subprocess.Popen([*command, *flags, "--tensor-parallel-size=2"], stderr=subprocess.DEVNULL)
    try:
        _await_health(port)
        found = listening(family_of(server.pid))
        assert len(found) == 1 and is_local(found[0][1])
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(200)


def _await_health(port: int) -> None:
    ends = time.monotonic() + 200
    while time.monotonic() < ends:
        try:
            with closing(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60)) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError("the server did not start")
