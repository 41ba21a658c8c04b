"""How processes that run side by side share the work of reading all files of tests.

pytest rewrites the assertions of a file and compiles it, which takes longer than all else there is to do with it, and
keeps the result for the process that reads that file next. In a fresh clone processes that read in the same order would
each do all of it: hence each begins elsewhere, and finds done what those before it have read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def rooms_from(number: int, num_processes: int) -> list[str]:
    """All that lies in the folder of tests, in the order in which this one of the processes reads it."""
    rooms = sorted(str(room) for room in TESTS.iterdir() if _has_tests(room))
    first = len(rooms) * number // num_processes
    return rooms[first:] + rooms[:first]


def _has_tests(room: Path) -> bool:
    return room.match("test_*.py") or (room.is_dir() and room.name[0] not in "._")


def sort_by_file(items: list[pytest.Item]) -> None:
    """As if they had been read in the order of their names."""
    items.sort(key=lambda item: item.path.parts)
