"""The JSON-Schema-Test-Suite, as the source archive of the `jsonschema` package carries it."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.helpers.pip_archives import kept_from

PACKAGE = "jsonschema==4.26.0"
_INSIDE = "/json/tests/draft2020-12/"


@cache
def suite_schemas() -> list[tuple[str, dict[str, Any]]]:
    """(keyword and description, schema) of each group that has an object for a schema, all of one dialect."""
    groups = kept_from(PACKAGE, _groups_in, "--no-binary", ":all:")
    return [(name, {key: value for key, value in schema.items() if key != "$schema"}) for name, schema in groups]


def _groups_in(path: Path) -> list[tuple[str, dict[str, Any]]]:
    with tarfile.open(path) as archive:
        return [group for member in archive.getmembers() for group in _groups(archive, member)]


def _groups(archive: tarfile.TarFile, member: tarfile.TarInfo) -> list[tuple[str, dict[str, Any]]]:
    head, found, name = member.name.partition(_INSIDE)
    if not found or "/" in name or not name.endswith(".json"):
        return []
    file = archive.extractfile(member)
    assert file is not None and head
    groups = [(f"{name[:-5]}: {group['description']}", group["schema"]) for group in json.load(file)]
    return [(title, schema) for title, schema in groups if isinstance(schema, dict)]
