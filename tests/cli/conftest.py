"""Fixtures of the shell's tests: the server's application over a fake engine, for commands that ask one."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.server.conftest import fake_model, serve  # noqa: F401  (fixtures)


@pytest.fixture(autouse=True)
def collectable() -> Iterator[None]:
    """A command keeps what it loads until its process ends; a test's process goes on."""
    yield
    gc.unfreeze()
