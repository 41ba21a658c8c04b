"""`make test` finds every test file, and every process finds the same tests in the same order."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.arch.source import ROOT

# A collection takes seconds, minutes on a busy machine.
pytestmark = pytest.mark.timeout(1800)

_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+|0x[0-9a-f]{8,}", re.IGNORECASE)
_OF_THIS_MACHINE = tuple({str(ROOT), sys.prefix, str(Path.home()), tempfile.gettempdir()} - {"/"})
_OF_PROCESSES = ("-n", "--dist")  # options that each have a value


@dataclass(frozen=True)
class Collection:
    ids: list[str]  # in their order
    deselected: list[str]
    skipped: list[str]  # files that say by themselves that they cannot be used here

    @property
    def files(self) -> set[str]:
        return {name.partition("::")[0] for name in (*self.ids, *self.deselected, *self.skipped)}


def command_of(makefile: str) -> list[str]:
    """The words after `python -m pytest` of the target `unit`, without those about processes."""
    recipe = re.search(r"^unit:[^\n]*\n\t\S+ -m pytest([^\n]*)$", makefile, re.MULTILINE)
    test = re.search(r"^test:[^\n]*\n\t.*\bunit\b", makefile, re.MULTILINE)
    assert recipe and test, "`make test` runs the target `unit`"
    words = shlex.split(recipe[1])
    dropped = {at + step for at, word in enumerate(words) if word in _OF_PROCESSES for step in (0, 1)}
    return [word for at, word in enumerate(words) if at not in dropped]


def collected(request: pytest.FixtureRequest, **environment: str) -> Collection:
    """By another process, whose sets and hashes have another order."""
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    words = command_of((ROOT / "Makefile").read_text(encoding="utf-8"))
    words += ["--wide"] * bool(request.config.getoption("--wide"))
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *words, "--collect-only", "-q", "-p", "tests.helpers.collected"]
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder, "collected.json")
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**kept, "PYTHONHASHSEED": seed, "COLLECTED_TO": str(to), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
        return Collection(**json.loads(to.read_text(encoding="utf-8")))


def assert_all_files(collection: Collection) -> None:
    on_disk = {file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")}
    assert len(on_disk) > 100
    assert sorted(on_disk - collection.files) == [], "not collected"
    assert sorted(collection.files - on_disk) == [], "not below tests"


def assert_lasting(ids: list[str]) -> None:
    """They are the same in every process and on every machine."""
    assert len(ids) == len(set(ids))
    assert [name for name in ids if _ADDRESS.search(name)] == [], "addresses in memory"
    assert [name for name in ids if any(path in name for path in _OF_THIS_MACHINE)] == [], "paths of this machine"
    assert [name for name in ids if not name.isprintable()] == []


def test_the_command_collects_the_files_on_disk(request: pytest.FixtureRequest) -> None:
    assert_all_files(collected(request, COLLECT_FILES="1"))


def test_ids_of_this_process_are_lasting(request: pytest.FixtureRequest) -> None:
    """That all processes of `make test` have the same ones in the same order, xdist checks before it runs any. Each has
    its own seed of hashes, unless PYTHONHASHSEED gives them one."""
    assert_lasting([item.nodeid for item in request.session.items])


@pytest.mark.wide
def test_another_process_collects_the_same_tests_in_the_same_order(request: pytest.FixtureRequest) -> None:
    """This one beside the other; it may have been asked for some of the files alone."""
    collection = collected(request)
    assert_all_files(collection)
    assert_lasting([*collection.ids, *collection.deselected])
    own = [item.nodeid for item in request.session.items]
    chosen = set(own)
    assert sorted(chosen - set(collection.ids)) == [], "found by this process alone"
    assert own == [name for name in collection.ids if name in chosen]
