"""The code as the checks see it: one parsed file each."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "cadence"


@dataclass(frozen=True)
class Source:
    path: str  # "cadence/core/contract/step.py"
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.text)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree, as `ast.walk` has them."""
        return _walked(self.text)

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def room(self) -> str:
        """The folder directly under cadence/ ("entrypoints/cli" is a room of its own); "" for cadence/__init__.py."""
        if self.path.startswith("cadence/entrypoints/cli/"):
            return "entrypoints/cli"
        return self.path.split("/")[1] if self.path.count("/") > 1 else ""


@functools.cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def _walked(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parsed(text)))


@dataclass(frozen=True, order=True)
class Violation:
    subject: str  # what breaks the law: a file, or file:name
    message: str


@functools.cache
def all_sources() -> list[Source]:
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    return [Source(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")) for file in files]


@functools.cache
def imported_modules(source: Source) -> tuple[str, ...]:
    """Every module a file imports, at the top or inside functions; `from a import b` gives both a and a.b.

    Imports under `if TYPE_CHECKING:` are for the type checker alone and do not count.
    """
    return tuple(_imported(source, _type_only(source)))


@functools.cache
def named_modules(source: Source) -> tuple[str, ...]:
    """As `imported_modules`, and those under `if TYPE_CHECKING:` too."""
    return tuple(_imported(source, set()))


def _type_only(source: Source) -> set[ast.AST]:
    return {
        inner
        for node in source.nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


def _imported(source: Source, left_out: set[ast.AST]) -> Iterator[str]:
    for node in source.nodes:
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(source, node)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = source.module.split(".") if source.path.endswith("__init__.py") else source.module.split(".")[:-1]
    parent = package[: len(package) - node.level + 1]
    return ".".join([*parent, *([node.module] if node.module else [])])
