"""Puts each fault of the catalog into a copy of this tree, one at a time, and runs the tests that must notice it.

    python -m tests.mutants.run [WORD ...]      only those whose names have one of these words

Prints which test caught each; the exit status is 1 where one was not caught.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.catalog import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
LIMIT_S = 900  # of one run of tests
HANGS_S = 120  # of one test: a fault that makes it wait for ever fails it


def main(words: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="cadence-mutants-") as made:
        tree = Path(made) / "tree"
        _copy(tree)
        caught = [_report(mutant, _failure(mutant, tree)) for mutant in chosen]
    print(f"{sum(caught)} of {len(chosen)} were caught")
    return 0 if all(caught) else 1


def put_in(mutant: Mutant, tree: Path) -> str:
    """-> what the file held before. Raises ValueError where the text is not there, or more than once."""
    path = tree / "cadence" / mutant.file
    before = path.read_text(encoding="utf-8")
    if before.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has its text {before.count(mutant.old)} times, not once")
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    return before


def _copy(tree: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def _failure(mutant: Mutant, tree: Path) -> str:
    """The first test that fails, and passes without the fault; "" = none."""
    path, broken = tree / "cadence" / mutant.file, list[str]()  # tests that fail without the fault
    while True:
        before = put_in(mutant, tree)
        try:
            failing = next(filter(None, (_first_failing(tree, f"tests/{each}", broken) for each in mutant.tests)), "")
        finally:
            path.write_text(before, encoding="utf-8")
        if not failing or failing in broken or not _first_failing(tree, failing):
            return "" if failing in broken else failing
        broken.append(failing)


def _first_failing(tree: Path, tests: str, left_out: Sequence[str] = ()) -> str:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-o",
        f"timeout={HANGS_S}",
        *(f"--deselect={test}" for test in left_out),
        tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", ran.stdout, re.MULTILINE)
    if found:
        return found[1]
    return "" if ran.returncode == 0 else f"pytest ended with status {ran.returncode}: {ran.stdout[-300:]}"


def _report(mutant: Mutant, failure: str) -> bool:
    print(
        f"{'caught' if failure else 'NOT CAUGHT'}: {mutant.name}" + (f"\n    by {failure}" if failure else ""),
        flush=True,
    )
    return bool(failure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
