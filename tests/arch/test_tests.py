"""Tests live in folders that CONTRIBUTING.md names, and say what they need."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.arch.source import ROOT, Source, imported_modules

_BELOW = ("device", "kernels", "models", "sample", "speculate", "runner", "executor")
DEVICE_ROOMS = tuple(f"cadence.{room}" for room in _BELOW)
ENGINES = {
    "cadence.LLM",
    "cadence.AsyncLLM",
    "cadence.entrypoints.async_llm",
    "cadence.engine.llm_engine",
    "cadence.engine.build",
}
SERVERS = ("tests/server/", "tests/hostile/", "tests/clients/")  # what they need, the folder says

FILES = [
    Source(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    for file in sorted((ROOT / "tests").rglob("test_*.py"))
]


def marks_wanted(source: Source) -> set[str]:
    """The marks of which the file carries at least one; none where it may do without."""
    modules = set(imported_modules(source))
    if modules & ENGINES:
        return {"engine"}
    return {"device", "engine"} if any(name.startswith(DEVICE_ROOMS) for name in modules) else set()


def marks_of(source: Source) -> set[str]:
    found = re.search(r"^pytestmark = (.*?)\n(?=\S|\n)", source.text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"pytest\.mark\.(\w+)", found[1])) if found else set()


def unmarked(files: Sequence[Source]) -> list[str]:
    wanted = [(file, marks_wanted(file)) for file in files if not file.path.startswith(SERVERS)]
    return [f"{file.path}: one of {sorted(marks)}" for file, marks in wanted if marks and not marks & marks_of(file)]


def test_each_file_is_marked_by_what_it_needs() -> None:
    assert unmarked(FILES) == []


def test_a_missing_mark_is_found() -> None:
    text = "from cadence import LLM\n\npytestmark = pytest.mark.slow\n\n\nx = pytest.mark.engine\n"
    assert unmarked([Source("tests/core/test_a.py", text)]) == ["tests/core/test_a.py: one of ['engine']"]


def test_contributing_names_every_folder() -> None:
    folders = {file.path.rpartition("/")[0] for file in FILES} | {"tests/clients", "tests/helpers"}
    named = set(re.findall(r"`(tests/\w+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert folders == named
