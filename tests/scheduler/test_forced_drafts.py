"""Tokens that a grammar forces become drafts only as far as blocks are free, in every KV group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cadence.core.grammar import GRAMMAR
from cadence.scheduler.budget import RunLimits
from cadence.scheduler.feature import Decodes
from cadence.scheduler.features.grammar import forced

BLOCK, ROWS, FORCED = 16, 4, [7] * 100


def forced_drafts(num_free: int, num_groups: int, runs: RunLimits) -> list[int]:
    """Of each of so many rows, all of which a grammar holds to FORCED."""
    some_np, none_np = np.ones(ROWS, dtype=bool), np.zeros(ROWS, dtype=np.int64)
    rows = SimpleNamespace(waits_np=some_np, needs_host_np=~some_np, length_np=none_np, known_np=none_np)
    rows.limit_np, rows.requests, rows.num_free, rows.count = none_np + 1000, [None] * ROWS, 0, ROWS
    kv = SimpleNamespace(num_free=num_free, num_growing=num_groups, block_size=BLOCK)
    books: Any = SimpleNamespace(rows=rows, kv=kv, budget=SimpleNamespace(step=1000, runs=runs))
    draft: Any = SimpleNamespace(width=1, payloads={})
    decodes = Decodes(np.arange(ROWS), np.ones(ROWS, dtype=np.int64), none_np.copy(), waiting=False)
    forced.force_drafts(draft, books, decodes)
    assert [len(tokens) for _, tokens in draft.payloads.get(GRAMMAR, ())] == [*filter(None, decodes.drafts_np)]
    return decodes.drafts_np.tolist()


@pytest.fixture(autouse=True)
def all_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced, "output_of", lambda request: SimpleNamespace(ahead=lambda: FORCED))


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize("num_free", [0, 12, 15, 30, 60, 10_000])
def test_forced_drafts_fit_the_free_blocks(num_groups: int, num_free: int) -> None:
    """Also where every row begins a block of each group with its next token."""
    drafts = forced_drafts(num_free, num_groups, RunLimits(width=200))
    assert num_groups * sum(-(-(1 + count) // BLOCK) for count in drafts if count) <= num_free
    assert num_free < 10_000 or drafts == [len(FORCED)] * ROWS


@pytest.mark.parametrize("width", [1, 4])
def test_forced_drafts_fit_what_states_keep(width: int) -> None:
    assert forced_drafts(10_000, 0, RunLimits(width=width, strict=True)) == [width - 1] * ROWS
