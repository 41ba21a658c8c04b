"""What is made of hidden states that are no numbers is none, either."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadence.core.pooled.pooling import SIGMOID, SOFTMAX, PoolingSpec
from cadence.kernels.reference.torch_ops import TorchOps
from cadence.runner.features.pooling.finish import finished
from cadence.runner.features.pooling.sums import means

pytestmark = pytest.mark.device


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("activation", [SIGMOID, SOFTMAX])
def test_an_activation_hides_nothing(value: float, activation: str) -> None:
    values_np = np.array([[0.5, value, 2.0]], dtype=np.float32)
    assert np.isnan(finished(values_np, PoolingSpec("last", "classify", activation=activation))).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_mean_hides_nothing_and_is_the_same_in_parts(value: float) -> None:
    hidden = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    segments, counts = torch.arange(12) % 3, torch.tensor([4, 4, 4])
    token_sums = TorchOps().token_sums
    expected = means(token_sums(hidden, segments, 3), counts)
    torch.testing.assert_close(expected, torch.stack([hidden[first::3].mean(dim=0) for first in range(3)]))
    hidden[4, 5] = value
    parts = [token_sums(hidden[some], segments[some], 3) for some in (slice(0, 5), slice(5, 12))]
    found = means(parts[0] + parts[1], counts)
    assert found[1].isnan().all() and torch.equal(found[[0, 2]], expected[[0, 2]])
