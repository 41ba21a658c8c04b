"""One matrix per model, run once for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from cadence.runner import shapes
from tests.matrix.runs import Matrix, MatrixOf


@pytest.fixture(scope="session")
def matrix_of(tiny_model: Callable[[str], Path]) -> MatrixOf:
    return cache(lambda family: Matrix(family, tiny_model(family)))


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_WORTH_RECORDING", 1)


@pytest.fixture(autouse=True)
def threads_of_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
