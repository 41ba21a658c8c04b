"""docs/structures.md is a map: short lines. What lives in a folder stands in the folder itself."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.docs.blocks import ROOT

LONGEST = 120  # characters of a line in a table


def folders_without_docstring(package: Path) -> list[str]:
    """Folders of Python files whose `__init__` is missing, or does not say what lives there."""
    found = []
    for folder in sorted({file.parent for file in package.rglob("*.py")}):
        head = folder / "__init__.py"
        said = ast.get_docstring(ast.parse(head.read_text(encoding="utf-8"))) if head.exists() else None
        found += [] if said else [str(folder.relative_to(package.parent))]
    return found


def long_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|") and len(line) >= LONGEST]


def test_every_folder_says_what_lives_there() -> None:
    assert folders_without_docstring(ROOT / "cadence") == []


def test_the_map_has_short_lines() -> None:
    assert long_lines((ROOT / "docs/structures.md").read_text(encoding="utf-8")) == []


def test_a_silent_folder_and_a_long_line_are_found(tmp_path: Path) -> None:
    for name, text in {"a": '"""Words."""', "b": "", "c": None}.items():
        (tmp_path / "house" / name).mkdir(parents=True)
        (tmp_path / "house" / name / "file.py").write_text("")
        if text is not None:
            (tmp_path / "house" / name / "__init__.py").write_text(text)
    assert folders_without_docstring(tmp_path / "house") == ["house/b", "house/c"]
    assert long_lines(f"| short |\n| {'x' * LONGEST} |\n{'x' * LONGEST}") == [f"| {'x' * LONGEST} |"]
