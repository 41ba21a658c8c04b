"""Fixtures every test may use. Models are tiny and random, made once per session; SmolLM2 is the real one."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.certificates import read_certificates_once
from tests.helpers.interpreted_dots import widen_interpreted_dots
from tests.helpers.quick_interpreter import quicken_interpreter
from tests.helpers.shared_collection import rooms_from, sort_by_file
from tests.helpers.wide import choose_examples

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-rounds", type=int, default=3, help="rounds of the fault injector (300 for a long run)")
    parser.addoption(
        "--every-engine",
        action="store_true",
        help="the whole matrix: two ranks, experts",
    )
    parser.addoption("--wide", action="store_true", help="also tests marked `wide`: what a sample of them stands for")
    parser.addoption("--cold", action="store_true", help="files marked `warm` start processes as users do, too")
    group = parser.getgroup("hostile", "the hostile-input generator (tests/hostile)")
    group.addoption("--hostile-requests", type=int, default=0, help="generated requests; 0 = one of each kind")
    group.addoption("--hostile-seed", type=int, default=1, help="another seed is another set of requests")
    group.addoption("--hostile-margin", type=float, default=0.0, help="stretches bounds on times (60; a night's: 1)")


def pytest_configure(config: pytest.Config) -> None:
    """Where files of tests run side by side, each process keeps to a core: its kernels then have one thread, unless a
    test asks for more, and none spins on a core that another needs. They also share the work of reading the files."""
    choose_examples(wide=config.getoption("--wide"))
    read_certificates_once()
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    if worker and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.args[:] = rooms_from(int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """More than there are cores, for files that mostly wait."""
    from tests.helpers.shared_work import MOST_SPARE

    cores = yield
    return cores + min(cores, MOST_SPARE)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of `--dist loadfile`; others are as they are."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.helpers.shared_work import SharedWorkScheduling

    return SharedWorkScheduling(config, log)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny_model(family) -> directory of a tiny random model, made on first use."""
    from tests.helpers.tiny_models import make_tiny

    root = tmp_path_factory.mktemp("tiny_models")
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_tiny(family, root / family)
        return made[family]

    return get


@pytest.fixture(scope="session")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The same of models that see."""
    from tests.helpers.tiny_vision import make_vision

    root = tmp_path_factory.mktemp("vision_models")
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_vision(family, root / family)
        return made[family]

    return get


@pytest.fixture(scope="module", autouse=True)
def warm_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Servers, engines and ranks that files marked `warm` start are forked off a process that has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("warm") and not request.config.getoption("--cold"):
            from tests.helpers.warm_start import WarmPopen, warm_exec

            patch.setattr("subprocess.Popen", WarmPopen)
            patch.setattr("asyncio.create_subprocess_exec", warm_exec)
        yield


def draw_the_same() -> None:
    """What is drawn from torch's global generator does not depend on what this process ran before."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(20_250)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    draw_the_same()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    draw_the_same()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A loop that was left open must not have its descriptor told of signals: it may be another file's by then."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """All that is imported and collected stays. To look through it for garbage takes a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    quicken_interpreter()  # what uses Triton has imported it
    widen_interpreted_dots()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `wide` run where they are asked for, those marked `gpu` where there is one."""
    sort_by_file(items)
    if config.getoption("--wide"):
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker("wide")  # it has more examples now
    else:
        left_out = [item for item in items if item.get_closest_marker("wide")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("wide")]
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
