"""Families whose layers keep a state compute what transformers computes: whole, in pieces, with drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.one_sequence import OneSequence, load
from tests.helpers.oracle import load_oracle, logprobs
from tests.helpers.tiny_states import STATE_FAMILIES
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.device

EACH_KIND = ("mamba", "mamba2", "lfm2", "qwen3_next", "falcon_h1")  # of mixers


def tokens(count: int) -> list[int]:
    return torch.randint(3, 320, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", mostly_wide(STATE_FAMILIES, [*EACH_KIND, "granite_hybrid", "jamba"]))
def test_equals_transformers_whole_and_in_pieces(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory = tiny_model(family)
    model, oracle = load(directory), load_oracle(directory)
    ids = tokens(80)
    theirs = logprobs(oracle, ids)
    close(OneSequence(model).feed(ids), theirs)
    pieces = OneSequence(model)
    sizes = [40, 1, 2, 29] + [1] * 8
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    close(torch.cat([pieces.feed(ids[start : start + size]) for start, size in zip(starts, sizes)]), theirs)
    last = OneSequence(model)
    found = torch.cat([last.feed(ids[:60], last_only=True), last.feed(ids[60:], last_only=True)])
    close(found, theirs[[59, 79]])
    assert theirs.argmax(dim=-1).unique().numel() > 20, "a tiny model that says the same thing everywhere proves little"


@pytest.mark.parametrize("family", mostly_wide(STATE_FAMILIES, EACH_KIND))
def test_drafts_that_are_dropped_leave_nothing_behind(family: str, tiny_model: Callable[[str], Path]) -> None:
    """A run's last tokens may turn out to be others: of 3 drafts after 20 tokens none to all are kept."""
    directory = tiny_model(family)
    model, ids = load(directory), tokens(40)
    theirs = OneSequence(model).feed(ids)
    for kept in range(4):
        ours = OneSequence(model)
        wrong = [3 + (token - 2) % 300 for token in ids[20 + kept : 23]]
        tried = ours.feed(ids[: 20 + kept] + wrong, drafts=3)
        close(tried[: 20 + kept], theirs[: 20 + kept])
        close(ours.feed(ids[20 + kept :], dropped=3 - kept), theirs[20 + kept :])
