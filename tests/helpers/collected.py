"""A plugin for `pytest --collect-only -p tests.helpers.collected`: writes what was found into the file that
COLLECTED_TO names, as JSON. With COLLECT_FILES it reads no file of tests, which takes a tenth of the time: each then
stands for one test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_DESELECTED: list[str] = []
_SKIPPED: list[str] = []  # files that say by themselves that they cannot be used here


class _Unread(pytest.Module):
    def collect(self) -> Iterator[pytest.Item]:
        yield _Stand.from_parent(self, name="unread")


class _Stand(pytest.Item):
    def runtest(self) -> None: ...


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if "COLLECT_FILES" not in os.environ:
        return None
    found: pytest.Module = _Unread.from_parent(parent, path=module_path)
    return found


def pytest_deselected(items: list[pytest.Item]) -> None:
    _DESELECTED.extend(item.nodeid for item in items)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _SKIPPED.append(report.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    found = {"ids": [item.nodeid for item in session.items], "deselected": _DESELECTED, "skipped": _SKIPPED}
    Path(os.environ["COLLECTED_TO"]).write_text(json.dumps(found), encoding="utf-8")
