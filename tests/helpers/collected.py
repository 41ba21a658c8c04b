"""A plugin for `pytest --collect-only -p tests.helpers.collected`: writes what was found into the file that
COLLECTED_TO names, as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_DESELECTED: list[str] = []
_SKIPPED: list[str] = []  # files that say by themselves that they cannot be used here


def pytest_deselected(items: list[pytest.Item]) -> None:
    _DESELECTED.extend(item.nodeid for item in items)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _SKIPPED.append(report.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    found = {"ids": [item.nodeid for item in session.items], "deselected": _DESELECTED, "skipped": _SKIPPED}
    Path(os.environ["COLLECTED_TO"]).write_text(json.dumps(found), encoding="utf-8")
