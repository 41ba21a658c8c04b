"""When a decode forward, or a burst of them, becomes a graph of its own. Needs no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from cadence.runner.graphs import _WORTH_CAPTURING, DecodeGraphs, DecodeShape

pytestmark = pytest.mark.device

NO_DEVICE: Any = None  # nothing is captured here


def test_bursts_are_captured_as_a_whole_only_when_met_for_a_while() -> None:
    graphs = DecodeGraphs(NO_DEVICE, max_num_seqs=256, max_model_len=64, most_forwards=8)
    early = [graphs.shape(5, 8, 1, draws=True) for _ in range(_WORTH_CAPTURING - 1)]
    assert set(early) == {DecodeShape(8, 1, True)}
    assert graphs.shape(7, 8, 1, draws=True) == DecodeShape(8, 8, True), "5 and 7 rows are padded to the same graph"
    assert graphs.shape(7, 4, 1, draws=True).num_forwards == 1, "a part of a burst goes forward by forward"
    assert graphs.shape(7, 8, 1, draws=False).num_forwards == 1, "the host has a say after each forward"
    for _ in range(2 * _WORTH_CAPTURING):
        assert graphs.shape(65, 8, 1, draws=True) == DecodeShape(80, 1, True), "a launch is cheap beside so many rows"
