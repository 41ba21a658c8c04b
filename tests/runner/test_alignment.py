"""One matrix of many heads: its parts held to transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.models.whisper.generation_whisper import _median_filter

from cadence.runner.features.alignment.weights import median_filter, smoothed

pytestmark = pytest.mark.device


@pytest.mark.parametrize("positions", [1, 3, 4, 7, 50])
def test_medians_of_transformers(positions: int) -> None:
    values = torch.randn((3, positions), generator=torch.Generator().manual_seed(0))
    assert median_filter(values, 7).equal(_median_filter(values[None, None], 7)[0, 0])


def test_a_position_at_which_all_tokens_look_alike_says_nothing() -> None:
    weights = torch.full((4, 20), 0.05)
    assert smoothed(weights).equal(torch.zeros(4, 20))
