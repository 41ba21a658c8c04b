"""Engines killed and stopped at random moments under a real server: four rounds, thirty in `make wide`, and as many as
`--fault-rounds` says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.fault_injector import inject

pytestmark = [pytest.mark.slow, pytest.mark.warm, pytest.mark.timeout(7200)]

SHARES = [("toy", 0.8), ("poison", 0.2)]
WIDE_ROUNDS = 30


@pytest.mark.parametrize(("engine", "share"), SHARES)
def test_every_stream_ends_once_and_the_server_serves(
    tiny_model: Callable[[str], Path], pytestconfig: pytest.Config, engine: str, share: float
) -> None:
    """Most rounds with an engine that starts in no time, the others with the real one."""
    disturb(tiny_model("llama"), engine, max(int(pytestconfig.getoption("--fault-rounds") * share), 2))


@pytest.mark.wide
@pytest.mark.parametrize(("engine", "share"), SHARES)
def test_in_many_rounds(tiny_model: Callable[[str], Path], engine: str, share: float) -> None:
    disturb(tiny_model("llama"), engine, int(WIDE_ROUNDS * share))


def disturb(model: Path, engine: str, rounds: int) -> None:
    tally = asyncio.run(inject(model, engine, rounds, seed=rounds))
    print(tally)
    assert tally.rounds.total() == rounds
    assert tally.num_quarantined <= tally.num_streams // 20
