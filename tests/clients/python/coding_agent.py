"""What the scripts of the coding agents share: a folder to work in, a home of their own, and one run with a deadline.

Run as `python SCRIPT SCRIPTED_URL REAL_URL BIN`: BIN is the folder with the agents' commands."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

BIN = Path(sys.argv[3]) if len(sys.argv) > 3 else Path()
SECRET = "lighthouse"
RUN_S = 90.0


class Workspace:
    """A folder with `notes.txt`; nothing of the user's own settings is seen from it."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = root / "project"
        self.home.mkdir()
        self.project.mkdir()
        (self.project / "notes.txt").write_text(f"The secret word is {SECRET}.\n")

    def run(self, command: list[str], **environment: str) -> str:
        """What it writes on stdout; any other end than 0 raises with all it said."""
        settings = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.home), **environment}
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.project,
            env=settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        if done.returncode:
            raise AssertionError(f"status {done.returncode}: {done.stdout[-1500:]} {done.stderr[-1500:]}")
        return done.stdout


@contextlib.contextmanager
def workspace() -> Iterator[Workspace]:
    with tempfile.TemporaryDirectory(prefix="cadence-agent-") as root:
        yield Workspace(Path(root))
