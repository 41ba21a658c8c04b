"""The JSON-Schema-Test-Suite, as the source archive of the `jsonschema` package carries it."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cadence.config.env import cache_root

PACKAGE = "jsonschema==4.26.0"
_INSIDE = "/json/tests/draft2020-12/"


@cache
def suite_schemas() -> list[tuple[str, dict[str, Any]]]:
    """(keyword and description, schema) of each group that has an object for a schema; fetched once."""
    kept = cache_root() / "tests" / f"{PACKAGE.replace('==', '-')}.json"
    if not kept.is_file():
        groups = _fetched()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(groups), encoding="utf-8")
    return [(name, schema) for name, schema in json.loads(kept.read_text(encoding="utf-8"))]


def _fetched() -> list[tuple[str, dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        options = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder, PACKAGE]
        done = subprocess.run([sys.executable, "-m", "pip", *options], capture_output=True, timeout=240, check=False)
        archives = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or not archives:
            pytest.skip(f"pip has no source archive of {PACKAGE}")
        with tarfile.open(archives[0]) as archive:
            return [group for member in archive.getmembers() for group in _groups(archive, member)]


def _groups(archive: tarfile.TarFile, member: tarfile.TarInfo) -> list[tuple[str, dict[str, Any]]]:
    head, found, name = member.name.partition(_INSIDE)
    if not found or "/" in name or not name.endswith(".json"):
        return []
    file = archive.extractfile(member)
    assert file is not None and head
    groups = [(f"{name[:-5]}: {group['description']}", group["schema"]) for group in json.load(file)]
    return [(title, schema) for title, schema in groups if isinstance(schema, dict)]
