"""How alike embeddings are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
_LEAST = np.float32(1e-12)  # of the product of two lengths


def similarities(first: Sequence[FloatArray], second: Sequence[FloatArray]) -> list[float]:
    """Of each pair: of embeddings [entries], or of those of tokens [n, entries]"""
    if first[0].ndim == 1:
        return [float(one) for one in cosines(np.stack(first), np.stack(second))]
    return [max_similarity(*pair) for pair in zip(first, second, strict=True)]


def cosines(first_np: FloatArray, second_np: FloatArray) -> FloatArray:
    """[n, entries] twice -> [n], one of each pair"""
    products_np = (first_np * second_np).sum(axis=1)
    lengths_np = np.linalg.norm(first_np, axis=1) * np.linalg.norm(second_np, axis=1)
    return np.asarray(products_np / np.maximum(lengths_np, _LEAST), dtype=np.float32)


def max_similarity(first_np: FloatArray, second_np: FloatArray) -> float:
    """Of the vectors of two texts' tokens, [n, entries] and [m, entries]: how alike each of the first is to the one of
    the second most like it, in all"""
    return float((first_np @ second_np.T).max(axis=1).sum())


def all_cosines(vectors_np: FloatArray) -> FloatArray:
    """[n, entries] -> [n, n], of each with each"""
    lengths_np = np.linalg.norm(vectors_np, axis=1)
    limits_np = np.maximum(np.outer(lengths_np, lengths_np), _LEAST)
    return np.asarray(vectors_np @ vectors_np.T / limits_np, dtype=np.float32)
