"""How alike embeddings are: pair by pair, and each with each."""

from __future__ import annotations

import numpy as np

from cadence.core.pooled.similarity import all_cosines, cosines


def test_each_with_each_is_what_pairs_are() -> None:
    vectors_np = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    expected_np = [cosines(np.broadcast_to(one_np, vectors_np.shape), vectors_np) for one_np in vectors_np]
    np.testing.assert_allclose(all_cosines(vectors_np), expected_np, rtol=1e-5, atol=1e-6)


def test_a_vector_without_length_is_like_no_other() -> None:
    vectors_np = np.array([[0, 0], [3, 4], [6, 8]], dtype=np.float32)
    np.testing.assert_allclose(all_cosines(vectors_np), [[0, 0, 0], [0, 1, 1], [0, 1, 1]], rtol=1e-6)
