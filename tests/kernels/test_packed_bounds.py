"""Nothing is read or written beyond its end, and files that lie are refused: in processes of their own, whose death
would be seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.tiny_gguf import make_tiny_gguf

pytestmark = pytest.mark.device

ROOT = Path(__file__).parents[2]


def run(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"tests.helpers.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
def test_products_stay_within_their_memory() -> None:
    assert "done" in run("guard_pages")


def test_damaged_files_are_refused_or_run(tmp_path: Path) -> None:
    good = make_tiny_gguf(tmp_path / "good.gguf", "Q4_1")
    refused, loaded = (int(part.split()[0]) for part in run("gguf_fuzz", str(good), "40").split(","))
    assert refused > 10 and loaded > 10  # both kinds of damage were tried
