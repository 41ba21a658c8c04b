"""Tests of this folder start many processes: what one leaves behind is ended, and that test fails, not the next."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.helpers.leftovers import Traces, mark_processes

mark_processes(os.environ)  # before any of them is started


@pytest.fixture(scope="module", autouse=True)
def nothing_left_of_a_file(warm_processes: None) -> Iterator[None]:
    """Set up before the fixtures of the file, and taken down after them."""
    before = Traces.now()
    yield
    found = before.left_over()
    assert not found, "this file left: " + "; ".join(found)


@pytest.fixture(autouse=True)
def nothing_left_of_a_test(nothing_left_of_a_file: None) -> Iterator[None]:
    """What the file's own fixtures run may be replaced by its like: an engine that was killed is started again."""
    before = Traces.now()
    yield
    found = before.left_over(replaced=True)
    assert not found, "this test left: " + "; ".join(found)
