"""Engines killed and stopped at random moments under a real server: thirty rounds, more with `--fault-rounds`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.fault_injector import inject


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("engine", "share"), [("toy", 0.8), ("poison", 0.2)])
def test_every_stream_ends_once_and_the_server_serves(
    tiny_model: Callable[[str], Path], pytestconfig: pytest.Config, engine: str, share: float
) -> None:
    """Most rounds with an engine that starts in no time, the others with the real one."""
    rounds = max(int(pytestconfig.getoption("--fault-rounds") * share), 2)
    tally = asyncio.run(inject(tiny_model("llama"), engine, rounds, seed=rounds))
    print(tally)
    assert tally.rounds.total() == rounds
    assert tally.num_quarantined <= tally.num_streams // 20
