"""The results of the last full run as a table, in the terminal and in docs/using/clients.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.clients.catalog import CLIENTS

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "using" / "clients.md"
BEGIN, END = "<!-- table of clients: begin -->\n", "<!-- table of clients: end -->\n"


def table(outcomes: Sequence[Mapping[str, Any]]) -> str:
    rows = [("client", "version", "outcome", "what ran"), *map(_row, outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    cells = [[cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in [*widths, 8]) + "|")
    return "\n".join(lines) + "\n"


def keep_results(outcomes: Sequence[Mapping[str, Any]]) -> None:
    """Of the clients that ran; those of the others stay. Puts the table of all into the page."""
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    kept = {outcome["client"]: outcome for outcome in [*before, *outcomes]}
    ordered = [kept[client.name] for client in CLIENTS if client.name in kept]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    page = PAGE.read_text()
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:start] + page_table() + page[end:])


def page_table() -> str:
    return table(json.loads(RESULTS.read_text()))


def _row(outcome: Mapping[str, Any]) -> tuple[str, str, str, str]:
    ran = ", ".join([*outcome["passed"], *outcome["failed"]])
    return outcome["client"], outcome["version"] or "-", _verdict(outcome), ran or "-"


def _verdict(outcome: Mapping[str, Any]) -> str:
    if outcome["skipped"]:
        return f"skipped: {outcome['skipped']}"
    if outcome["failed"]:
        return f"failed: {', '.join(outcome['failed'])}"
    return "passed"
