"""What the documents name exists: files, flags, architectures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from cadence.config.architectures import ARCHITECTURES
from tests.docs.blocks import ROOT, pages
from tests.docs.commands import parser_of

_SPAN = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[\w./-]+/[\w.-]+\.(py|md|c|h|json|jsonl|txt|yml|yaml|toml|png|service)")
_FLAG = re.compile(r"(?<![\w-])--(?:no-)?([a-z][a-z0-9_-]+)")
_COMMANDS = (["serve"], ["generate"], ["chat"], ["complete"], ["run-batch"], ["models"], ["collect-env"])
_BENCHES = (["bench", "latency"], ["bench", "throughput"], ["bench", "serve"])
_ROOTS = ("", "cadence/", "docs/", "docs/using/", "tests/server/", "tests/e2e/", "tests/null/", "benchmarks/results/")
# Flags of other programs, and of our benchmarks and tests, that pages speak of.
_OTHERS = {
    "fault-rounds",
    "fail-with-body",
    "help",
    "version",
    "offline",
    "shape",
    "show",
    "streams",
    "prompts",
    "output",
    "prompt",
}
_HISTORY = ("CHANGELOG.md", "docs/performance_log.md", "docs/compatibility.md")  # speak of what is not there, too


def _spans(page: str) -> list[str]:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    return _SPAN.findall(text)


@cache
def _flags() -> frozenset[str]:
    def of(words: Sequence[str]) -> list[str]:
        return [flag.removeprefix("--") for flag in parser_of(words).flags()]

    names = {name for words in (*_COMMANDS, *_BENCHES) for name in of(words)}
    return frozenset({name.replace("_", "-").removeprefix("no-") for name in names} | _OTHERS)


@pytest.mark.parametrize("page", [page for page in pages() if page not in _HISTORY])
def test_files(page: str) -> None:
    named = [span for span in _spans(page) if _FILE.fullmatch(span) and not span.startswith(("path/", "./", "/"))]
    missing = [name for name in named if not any((ROOT / root / name).exists() for root in (*_ROOTS, _here(page)))]
    assert not missing, f"{page} names files that are not there: {missing}"


def _here(page: str) -> str:
    return str(Path(page).parent) + "/"


@pytest.mark.parametrize("page", [page for page in pages() if page not in _HISTORY])
def test_flags(page: str) -> None:
    """Flags in the running text, of any `cadence` command."""
    found = [name for span in _spans(page) if not _other_program(span) for name in _FLAG.findall(span)]
    named = {name.replace("_", "-") for name in found}
    assert not named - _flags(), f"{page} names flags that do not exist: {sorted(named - _flags())}"


def _other_program(span: str) -> bool:
    return re.match(r"(python|pytest|vllm|mypy|pip|docker|git|uvicorn|make|curl|npx|claude|codex)\b", span) is not None


def test_every_architecture_is_listed() -> None:
    text = (ROOT / "docs/using/models.md").read_text(encoding="utf-8")
    assert [name for name in ARCHITECTURES if f"`{name}`" not in text] == []
