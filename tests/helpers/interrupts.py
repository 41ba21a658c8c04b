"""Ctrl-C in tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """A KeyboardInterrupt that arrives while the collector calls somebody back, as hypothesis is, is lost."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
