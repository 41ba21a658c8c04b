"""The results of the last full run as a table, in the terminal and in docs/using/clients.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "using" / "clients.md"
BEGIN, END = "<!-- table of clients: begin -->\n", "<!-- table of clients: end -->\n"


def table(outcomes: Sequence[Mapping[str, Any]]) -> str:
    rows = [("client", "version", "what ran", "outcome"), *map(_row, outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines) + "\n"


def write_page() -> None:
    """Puts the table of `results.json` into the page."""
    page = PAGE.read_text()
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:before] + page_table() + page[after:])


def page_table() -> str:
    return table(json.loads(RESULTS.read_text())["clients"])


def _row(outcome: Mapping[str, Any]) -> tuple[str, str, str, str]:
    ran = ", ".join([*outcome["passed"], *outcome["failed"]])
    return outcome["client"], outcome["version"] or "-", ran or "-", _verdict(outcome)


def _verdict(outcome: Mapping[str, Any]) -> str:
    if outcome["skipped"]:
        return f"skipped: {outcome['skipped']}"
    if outcome["failed"]:
        return f"failed: {', '.join(outcome['failed'])}"
    return "passed"
