"""One real server for the tests of this folder, started again when a test has killed it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile.bounds import CI_MARGIN, EXACT, Bounds
from tests.hostile.health import Target
from tests.hostile.server import start_server

NIGHTLY = 20_000  # requests from which on times are held to exactly


@pytest.fixture
def bounds(request: pytest.FixtureRequest) -> Bounds:
    margin = request.config.getoption("--hostile-margin")
    nightly = request.config.getoption("--hostile-requests") >= NIGHTLY
    return Bounds(margin=margin or (EXACT if nightly else CI_MARGIN))


@pytest.fixture(scope="session")
def living_server(tiny_model: Callable[[str], Path]) -> Iterator[Callable[[], Target]]:
    """living_server() -> one that answers."""
    with contextlib.ExitStack() as stack:
        started: list[Target] = []

        def get() -> Target:
            if not started or not _answers(started[-1]):
                stack.close()
                started.append(stack.enter_context(start_server(tiny_model("llama"))))
            return started[-1]

        yield get


@pytest.fixture
def target(living_server: Callable[[], Target]) -> Target:
    return living_server()


def _answers(target: Target) -> bool:
    try:
        with target.client() as client:
            return client.get("/health").status_code == 200
    except OSError:
        return False
    except Exception as error:
        if type(error).__module__.startswith("httpx"):
            return False
        raise
