"""docs/the_step.md lists the stops of a token: each exists, none comes twice, and they are few."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import ROOT

WAYS = {"From `LLM.generate`": 14, "From a request by HTTP": 20}  # how a list is announced -> stops
MOST = WAYS | {"From an update of a plain stream": 8}
_STOP = re.compile(r"^\d+\. `([\w/]+\.py)`: (.*)$", re.M)
_NAME = re.compile(r"`([\w.]+)`")


def stops(announced: str) -> list[tuple[str, str]]:
    """(file, what is said of it), in order."""
    page = (ROOT / "docs/the_step.md").read_text(encoding="utf-8")
    listed = page[page.index(announced) :].split("\n\n")[1]
    found = _STOP.findall(listed)
    assert len(found) == len(listed.strip().splitlines()), "a line of another shape"
    return found


def defined(file: str) -> set[str]:
    """Functions and classes of a file, methods as `Class.method`."""
    names = set()
    for node in ast.parse((ROOT / "cadence" / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update(f"{node.name}.{method.name}" for method in methods)
    return names


@pytest.mark.parametrize("announced", MOST)
def test_every_stop_exists_and_counts_once(announced: str) -> None:
    found = stops(announced)
    assert len(found) == len({file for file, _ in found}) <= MOST[announced]
    for file, said in found:
        names = _NAME.findall(said)
        assert names and names[0] in defined(file), f"{file} has no {names}"


def test_the_lists_meet_in_the_engine() -> None:
    """From the core to the text of a request the way is the same."""
    one, other = ([file for file, _ in stops(announced)] for announced in WAYS)
    for way in (one, other):
        del way[: way.index("engine/core.py")], way[way.index("text/detokenizer.py") + 1 :]
    assert one == other
