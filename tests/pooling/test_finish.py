"""What a head gave becomes what was asked for: the same bits for one request and for many at once."""

from __future__ import annotations

import numpy as np
import pytest

from cadence.core.pooled.pooling import CLASSIFY, EMBED, LAST, NONE, SIGMOID, SOFTMAX, PoolingSpec
from cadence.runner.features.pooling.finish import finished, finished_each

pytestmark = pytest.mark.device

SPECS = {
    "as they are": PoolingSpec(LAST, EMBED),
    "normalised": PoolingSpec(LAST, EMBED, normalize=True),
    "cut": PoolingSpec(LAST, EMBED, dimensions=7, normalize=True),
    "softmax": PoolingSpec(LAST, CLASSIFY, activation=SOFTMAX),
    "sigmoid of some": PoolingSpec(LAST, CLASSIFY, activation=SIGMOID, returned=(2, 0)),
    "scores": PoolingSpec(LAST, CLASSIFY, activation=NONE),
}


@pytest.mark.parametrize("entries", [9, 384, 9001])  # sums of more than 8192 numbers are made in parts
@pytest.mark.parametrize("name", SPECS)
def test_many_at_once_have_the_bits_of_each_alone(name: str, entries: int) -> None:
    values_np = np.random.default_rng(3).normal(0, 2, (13, entries)).astype(np.float32)
    values_np[4, 1], values_np[6, 8] = np.nan, np.inf
    alone_np = np.concatenate([finished(values_np[at : at + 1].copy(), SPECS[name]) for at in range(13)])
    together_np = finished_each(values_np, SPECS[name])
    assert together_np.dtype == np.float32 and together_np.tobytes() == alone_np.tobytes()
    assert np.flatnonzero(np.isnan(together_np).all(axis=1)).tolist() == [4, 6]
    assert np.isfinite(np.delete(together_np, [4, 6], axis=0)).all()
