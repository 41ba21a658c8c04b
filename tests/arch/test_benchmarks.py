"""Benchmarks are run by hand, some of them on machines with a GPU alone: what they import of the project is there.

Read off the code, so that packages which only some benchmarks need (llama_cpp, vllm) need not be installed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import speech
from tests.arch.source import ROOT

OURS = ("benchmarks", "cadence", "tests", "training")
BENCHMARKS = sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "benchmarks").rglob("*.py"))


def names_in(file: Path) -> Iterator[str]:
    """What a module can be asked for: what it defines, assigns or imports outside of functions and classes."""
    waiting: list[ast.AST] = list(ast.parse(file.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        waiting += ast.iter_child_nodes(node)


def missing(text: str) -> list[str]:
    """Modules and names of the project that a file with this text imports and that are not there."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if is_ours(alias.name) and module_file(alias.name) is None]
        elif isinstance(node, ast.ImportFrom) and is_ours(node.module or ""):
            file = module_file(str(node.module))
            known = set(names_in(file)) if file is not None else set()
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found += [name] if alias.name not in known and module_file(name) is None else []
    return found


def is_ours(module: str) -> bool:
    return module.split(".")[0] in OURS


def module_file(module: str) -> Path | None:
    place = ROOT / module.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


@pytest.mark.parametrize("path", BENCHMARKS)
def test_a_benchmark_imports_what_is_there(path: str) -> None:
    assert missing((ROOT / path).read_text(encoding="utf-8")) == []


def test_what_is_gone_is_found() -> None:
    text = (
        "import cadence.attic\nimport numpy\nfrom cadence import LLM, core\n"
        "def f():\n    from cadence.lora.adapter import open_adapter, gone\n"
        "    from cadence.lora import adapter, attic\n"
    )
    assert missing(text) == ["cadence.attic", "cadence.lora.adapter.gone", "cadence.lora.attic"]


def test_an_engine_that_is_not_known_is_refused_before_any_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--model", "m", "--ct2", "c", "--recording", "r", "--engines", "cadence-int8,cadence-int3"]
    monkeypatch.setattr("sys.argv", ["speech", *given])
    with pytest.raises(SystemExit):
        speech.main()
    assert "'cadence-int3' is not known here: name some of cadence-float32, " in capsys.readouterr().err
