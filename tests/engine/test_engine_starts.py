"""Engine processes are started as users do: what they are given, and what happens where they cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cadence.config.args import EngineArgs
from cadence.core.errors import EngineDeadError
from cadence.entrypoints.async_llm import AsyncLLM
from tests.engine.test_supervisor import many, running, under_way, until_ready
from tests.server.helpers import ROOT

pytestmark = pytest.mark.engine  # not warm: they are started, not forked


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


def test_an_engine_that_dies_before_it_says_anything_is_one_line_at_the_first_start(model: Path) -> None:
    words = [sys.executable, "-m", "tests.server.engines", "serve", "silent_death", str(model), "--port", "0"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "cadence serve: the engine did not start: the engine process ended with status 7\n"


def test_engines_that_die_before_they_say_anything_are_replaced(model: Path, tmp_path: Path) -> None:
    async def check() -> None:
        async with running(model, f"once:{tmp_path / 'starts'}") as llm:
            alone = await many(llm, 5, 300)
            streams = asyncio.ensure_future(many(llm, 5, 300))
            await under_way(llm, 5)
            os.kill(llm.engine_pid, signal.SIGKILL)
            assert await streams == alone and llm.num_restarts == 3

    asyncio.run(check())


def test_a_command_that_does_not_exist_is_said_at_once(model: Path) -> None:
    async def check() -> None:
        args = EngineArgs(model=str(model), max_model_len=512)
        with pytest.raises(EngineDeadError, match="no engine process could be made"):
            await AsyncLLM.start(args, engine_command=["/nonexistent/engine"])

    asyncio.run(check())


def test_descriptors_run_out_and_the_engine_dies(model: Path) -> None:
    async def check() -> None:
        async with running(model) as llm:
            alone = await many(llm, 5, 300)
            streams = asyncio.ensure_future(many(llm, 5, 300))
            await under_way(llm, 5)
            taken = []
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            try:
                os.kill(llm.engine_pid, signal.SIGKILL)
                assert await streams == alone
                restarts = llm.num_restarts
                os.kill(llm.engine_pid, signal.SIGKILL)
                while llm.num_restarts == restarts:
                    await asyncio.sleep(0.01)
                await until_ready(llm)
            finally:
                for descriptor in taken:
                    os.close(descriptor)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 128  # more than this process has open now
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(few, hard), hard))
    try:
        asyncio.run(check())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_processes_that_cannot_be_made_are_tried_again(model: Path) -> None:
    async def check() -> None:
        async with running(model) as llm:
            streams = asyncio.ensure_future(many(llm, 3, 300))
            await under_way(llm, 3)
            command, llm._supervisor._command = llm._supervisor._command, ["/nonexistent/engine"]
            os.kill(llm.engine_pid, signal.SIGKILL)
            while llm.num_restarts < 3:
                await asyncio.sleep(0.01)
            assert not llm.is_ready()
            llm._supervisor._command = command
            assert {reason for _, reason, _ in await streams} == {"length"}

    asyncio.run(check())


def test_the_engine_has_no_credentials(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "GITHUB_PAT", "DATABASE_URL")
    for name in secrets:
        monkeypatch.setenv(name, "https://user:planted@host/")
    monkeypatch.setenv("CADENCE_LOG_LEVEL", "ERROR")

    async def check() -> str:
        async with running(model) as llm:
            return Path(f"/proc/{llm.engine_pid}/environ").read_text()

    environment = asyncio.run(check())
    assert "planted" not in environment and not any(name in environment for name in secrets)
    assert "CADENCE_LOG_LEVEL=ERROR" in environment and "PATH=" in environment
