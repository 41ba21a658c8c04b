"""Memory that is free goes back to the operating system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from cadence.core.memory import map_large_blocks

MIXED = """
import psutil
from cadence.core import memory
{begin}
bytes(16_000_000)  # what is freed once is taken from the heap the next time
resident = psutil.Process().memory_info().rss
large, small = [], []
for _ in range(100):
    large.append(b"x" * 500_000)
    small.append(b"x" * 20_000)
del large
print(psutil.Process().memory_info().rss - resident)
"""


def _grown(begin: str) -> int:
    """Bytes that a process has more after 100 large blocks came and went and small ones between them stayed."""
    done = subprocess.run(
        [sys.executable, "-c", MIXED.format(begin=begin)], capture_output=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_large_blocks_go_back_at_once() -> None:
    assert _grown("memory.map_large_blocks()") < 10_000_000
    assert _grown("") > 40_000_000, "glibc does so by itself now"


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    map_large_blocks()
