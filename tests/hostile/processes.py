"""A server's processes as Linux accounts for them: memory, descriptors, threads, by role."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ENGINE = "engine"
FRONT = "front"


@dataclass(frozen=True)
class Usage:
    pid: int
    role: str
    rss_mb: float
    descriptors: int
    threads: int


def usages(pid: int) -> list[Usage]:
    """Of a server and all its descendants; a process that ends meanwhile is left out."""
    found = []
    for one in family(pid):
        with contextlib.suppress(OSError, KeyError):
            found.append(_usage(one, FRONT if one == pid else role_of(one)))
    return found


def family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def engine_pid(pid: int) -> int:
    """0 while there is none."""
    return next((one for one in family(pid) if one != pid and role_of(one) == ENGINE), 0)


def role_of(pid: int) -> str:
    """`engine`, or the module or program that runs."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if any("core_process" in word for word in words):
            return ENGINE
        if "-m" in words:
            return words[words.index("-m") + 1]
        for word in words:  # multiprocessing names its job in the code it runs
            if "multiprocessing" in word:
                return word.partition("import ")[2].partition(";")[0] or "multiprocessing"
        return Path(words[0]).name
    return "gone"


def _usage(pid: int, role: str) -> Usage:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )  # fmt: skip
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Usage(pid, role, int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"]))
