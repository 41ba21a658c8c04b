"""From what a head gave to what a request asked for, on the host and in float32: whatever else a step computed, the
values of a request are the same bits."""

from __future__ import annotations

import numpy as np

from cadence.core.contract.step import FloatArray
from cadence.core.pooled.pooling import SIGMOID, SOFTMAX, PoolingSpec

_LEAST = np.float32(1e-12)  # a shorter vector is not made longer


def finished(values_np: FloatArray, spec: PoolingSpec) -> FloatArray:
    """values [n, entries] of one request -> [n, entries or fewer]; where one is no number, none is"""
    if not np.isfinite(values_np).all():
        values_np = np.full_like(values_np, np.nan)
    return _made(values_np, spec)


def finished_each(values_np: FloatArray, spec: PoolingSpec) -> FloatArray:
    """The same of n requests with one vector each, which are alike: the same bits, at once."""
    is_whole_np = np.isfinite(values_np).all(axis=1)
    if not is_whole_np.all():
        values_np = np.where(is_whole_np[:, None], values_np, np.float32(np.nan))
    return _made(values_np, spec)


def _made(values_np: FloatArray, spec: PoolingSpec) -> FloatArray:
    if spec.returned:
        values_np = values_np[:, list(spec.returned)]
    if spec.dimensions:
        values_np = np.ascontiguousarray(values_np[:, : spec.dimensions])
    if spec.normalize:
        lengths_np = np.sqrt((values_np * values_np).sum(axis=1, keepdims=True))
        values_np = values_np / np.maximum(lengths_np, _LEAST)
    if spec.activation == SIGMOID:
        with np.errstate(over="ignore"):  # of scores far below 0, which become 0
            values_np = 1 / (1 + np.exp(-values_np))
    if spec.activation == SOFTMAX:
        powers_np = np.exp(values_np - values_np.max(axis=1, keepdims=True))
        values_np = powers_np / powers_np.sum(axis=1, keepdims=True)
    return values_np
