"""What the documents name exists: files, flags, architectures."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from cadence.core.contract.request import FinishReason
from cadence.core.model.architectures import ARCHITECTURES
from cadence.entrypoints.cli.main import COMMANDS
from cadence.entrypoints.server import routes
from cadence.gguf.file import GGML_TYPES
from tests.docs.blocks import NOT_RUN, ROOT, pages
from tests.docs.commands import parser_of

_SPAN = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"[\w./-]+/[\w.-]+\.(py|md|c|h|json|jsonl|txt|yml|yaml|toml|png|service)")
_IN_FILE = re.compile(r"`(\w+)`(?: (?:of|in)| \() `([\w./]+\.py)`")  # `NAME` of `path/file.py`
_FLAG = re.compile(r"(?<![\w-])--(?:no-)?([a-z][a-z0-9_-]+)")
_COMMANDS = tuple(
    [name]
    for name in [
        "serve",
        "generate",
        "chat",
        "complete",
        "embed",
        "transcribe",
        "run-batch",
        "quantize",
        "save-sharded",
        "models",
        "collect-env",
    ]
)
_BENCHES = (["bench", "latency"], ["bench", "throughput"], ["bench", "serve"])
_ROOTS = (
    "", "cadence/", "cadence/kernels/cpu/", "cadence/entrypoints/server/", "docs/", "docs/using/", "tests/server/",
    "benchmarks/results/",
)  # fmt: skip
# Flags of other programs, and of our benchmarks and tests, that pages speak of.
_OTHERS = {
    "model-map",  # of python -m cadence.vllm, as is path
    "path",
    "vocabulary",  # of python -m training.train, as is drafts
    "drafts",
    "fault-rounds",  # of the tests, as are cold and wide
    "cold",
    "wide",
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


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith("docs/how_to_")])
def test_recipes_name_what_a_file_defines(page: str) -> None:
    """`NAME` of a file is a class, a function or a value that is made there, not one that is imported."""
    text = re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))
    missing = []
    for name, file in _IN_FILE.findall(text):
        found = next(ROOT / root / file for root in _ROOTS if (ROOT / root / file).exists())
        made = rf"^\s*(?:(?:async )?def |class ){name}\b|^\s*{name}(?:: [^=\n]+)? \+?= |^\s*{name}: "
        if not re.search(made, found.read_text(encoding="utf-8"), re.MULTILINE):
            missing.append(f"{name} of {file}")
    assert missing == []


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


def _endpoints() -> set[str]:
    names = [found.name for found in pkgutil.walk_packages(routes.__path__, f"{routes.__name__}.")]
    modules = [importlib.import_module(name) for name in names]
    routers = [module.router for module in modules if hasattr(module, "router")]
    return {re.sub(r"\{.*?\}", "{id}", route.path) for router in routers for route in router.routes}


def test_every_endpoint_is_listed() -> None:
    text = (ROOT / "docs/using/server.md").read_text(encoding="utf-8")
    listed = set(_SPAN.findall(text))
    missing = [path for path in _endpoints() if not {path, f"…/{path.rpartition('/')[2]}"} & listed]
    assert missing == [], "not in docs/using/server.md"


def test_what_works_is_true() -> None:
    """The table in README.md: commands and endpoints, no more and no fewer than there are of the former."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shell, server = (re.search(rf"^\| {row} \| (.*) \|$", text, re.M) for row in ("Shell", "Server"))
    assert shell is not None and server is not None
    commands = [" ".join(words) for words in (*_COMMANDS, *_BENCHES)]
    assert sorted(_SPAN.findall(shell[1])) == sorted(commands)
    assert {words.split()[0] for words in commands} == set(COMMANDS)
    named = {span for span in _SPAN.findall(server[1]) if span.startswith("/")}
    assert named <= _endpoints()


def test_every_extra_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs/using/installation.md").read_text(encoding="utf-8")
    assert [name for name in project["optional-dependencies"] if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_pages_say_which_blocks_no_test_runs(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    said = re.search(r"(?:A test|`tests/docs`) runs [^.:]*? as (?:it|they) stands?[.,] (.*?)\.", text)
    assert said is not None and [reason for reason in NOT_RUN if reason not in said[1]] == []


def test_pages_name_every_finish_reason() -> None:
    reasons = {str(reason) for reason in FinishReason}
    lists = [
        (page, line)
        for page in pages()
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
        if len(reasons & set(_SPAN.findall(line))) > 2
    ]
    assert {page for page, _ in lists} >= {"docs/structures.md", "docs/using/python.md", "docs/using/metrics.md"}
    for page, line in lists:
        assert reasons <= set(_SPAN.findall(line)), f"{page}: {line}"


def test_the_table_of_gguf_types_is_that_of_the_code() -> None:
    page = (ROOT / "docs/using/quantization.md").read_text(encoding="utf-8")
    rows = page.partition("## GGUF types")[2].partition("\n## ")[0].splitlines()
    named = {name for row in rows if row.startswith("| ") for name in re.findall(r"\w+", row.split("|")[1])} - {"type"}
    plain = {"I8", "I16", "I32", "I64", "F64"}  # numbers that are no weights
    assert named == {kind.name for kind in GGML_TYPES.values()} - plain
