"""Every program in examples/ runs, with the default model, and says what it promises."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.source import ROOT
from tests.helpers.smollm2 import smollm2_path
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.warm]

EXAMPLES = ROOT / "examples"
FLAGS = ("--max-tokens", "6")

# Programs that run in this process, and what they print.
OFFLINE = {
    "offline.py": "'The capital of France is' → ' Paris",
    "chat.py": "temperature 0.2, top_p 0.9",
    "beam_search.py": "Paris",
    "logits_processor.py": "6 different tokens",
    "streaming.py": "sea: The sea is",
}
CLIENTS = {"openai_client.py": "Shakespeare", "tools.py": ""}
ALONE = {"batch.py": "q2: '", "vllm_script.py": "'The capital of France is' → ' Paris"}


@pytest.fixture(scope="module", autouse=True)
def model() -> None:
    smollm2_path()


def run(name: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *flags])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_is_run_and_listed() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {*OFFLINE, *CLIENTS, *ALONE}
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"[{name}]({name})" in page for name in names)


@pytest.mark.parametrize("name", OFFLINE)
def test_offline(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, FLAGS, monkeypatch)
    assert OFFLINE[name] in capsys.readouterr().out


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    flags = ("--max-model-len", "1024", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with ServerProcess("smollm2", *flags) as process:
        yield process


@pytest.mark.parametrize("name", CLIENTS)
def test_clients(
    name: str, server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, ("--url", server.url + "/v1", "--max-tokens", "24"), monkeypatch)
    printed = capsys.readouterr().out
    assert printed.strip() and CLIENTS[name] in printed


def test_batch() -> None:
    assert ALONE["batch.py"] in alone([str(EXAMPLES / "batch.py"), *FLAGS], ROOT)


def test_a_script_for_vllm(tmp_path: Path) -> None:
    words = ["-m", "cadence.vllm", "--model-map", "facebook/opt-125m=smollm2", str(EXAMPLES / "vllm_script.py")]
    assert ALONE["vllm_script.py"] in alone(words, tmp_path)


def alone(words: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
