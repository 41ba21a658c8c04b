"""The tables of constants in docs/draft_policy.md are those of the code: every name, and its value."""

from __future__ import annotations

import ast
import re

from tests.docs.blocks import ROOT

FOLDER = ROOT / "cadence/scheduler/features/drafts"
_ROW = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$")  # constant, value, unit, reasons


def constants_of_code(source: str) -> dict[str, str]:
    """Values of the names in capitals that a file assigns at its top level, as Python writes them."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=True))
            else:
                pairs = [(target, value)]
            found |= {ast.unparse(name): ast.unparse(each) for name, each in pairs}
    return {name: value for name, value in found.items() if name.isupper()}


def constants_of_page(page: str) -> dict[str, dict[str, str]]:
    """By the file that a heading names; every line of its table has five cells, none of them empty."""
    found: dict[str, dict[str, str]] = {}
    for section in page.partition("\n## Constants\n")[2].partition("\n## ")[0].split("\n### ")[1:]:
        title, *lines = section.splitlines()
        rows = [line for line in lines if line.startswith("|")][2:]  # after the head
        cells = [_ROW.match(row) for row in rows]
        assert all(cells), [row for row, cell in zip(rows, cells, strict=True) if cell is None]
        found[title] = {cell[1]: ast.unparse(ast.parse(cell[2], mode="eval")) for cell in cells if cell}
        assert len(found[title]) == len(rows), f"{title} has a constant twice"
    return found


def test_every_constant_is_on_the_page_with_its_value() -> None:
    in_code = {file.name: constants_of_code(file.read_text(encoding="utf-8")) for file in FOLDER.glob("*.py")}
    in_code = {file: constants for file, constants in in_code.items() if constants}
    assert sum(map(len, in_code.values())) > 40, "constants are found"
    assert constants_of_page((ROOT / "docs/draft_policy.md").read_text(encoding="utf-8")) == in_code


def test_names_that_share_an_assignment_each_have_their_value() -> None:
    source = "_A, _B = 1, 2.50\n_C = (1.0, 3)\nplain = 4\n\ndef f():\n    _D = 5\n"
    assert constants_of_code(source) == {"_A": "1", "_B": "2.5", "_C": "(1.0, 3)"}
