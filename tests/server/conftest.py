"""Fixtures of the server's tests: an application over a fake engine, and one real server on a tiny model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.warm_start import WarmPopen
from tests.server.helpers import FakeLLM, RunningApp, ServerProcess, run_app, save_fake_model


@pytest.fixture(scope="session")
def fake_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model without weights, for `FakeLLM`."""
    return save_fake_model(tmp_path_factory.mktemp("fake_model"))


@pytest.fixture
def serve(fake_model: Path) -> Iterator[Callable[..., RunningApp]]:
    """serve(llm=None, **options) -> a running application; `llm` is a FakeLLM, or keywords for one."""
    with contextlib.ExitStack() as stack:

        def start(llm: FakeLLM | dict[str, Any] | None = None, **options: Any) -> RunningApp:
            fake = llm if isinstance(llm, FakeLLM) else FakeLLM(fake_model, **(llm or {}))
            return stack.enter_context(run_app(fake, **options))

        yield start


@pytest.fixture
def warm_start(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """One test's servers are forked off a warm process, in a file whose other tests are about starts."""
    if not pytestconfig.getoption("--cold"):
        monkeypatch.setattr("subprocess.Popen", WarmPopen)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all pages; a test begins with `Page.forget`, or at an address that no other has."""
    from tests.server.webui_page import open_chromium

    with open_chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Callable[[str], Path], pytestconfig: pytest.Config) -> Iterator[ServerProcess]:
    """One real server on a tiny random llama, named `tiny`, for the whole session. No test is about its start."""
    options = ("--served-model-name", "tiny", "--max-model-len", "512", "--num-gpu-blocks-override", "2000")
    with pytest.MonkeyPatch.context() as patch:
        if not pytestconfig.getoption("--cold"):
            patch.setattr("subprocess.Popen", WarmPopen)
        server = ServerProcess(tiny_model("llama"), *options)  # so few blocks that a page shows each of them
    with server:
        yield server
