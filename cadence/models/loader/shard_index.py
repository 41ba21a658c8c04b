"""Which tensor of a model is in which of its files."""

from __future__ import annotations

from pathlib import Path

from cadence.config.files.json_file import MOST_TABLE_BYTES, read_object
from cadence.core.errors import WeightsError


def read_index(path: Path) -> dict[str, str]:
    """-> names of files, which lie beside it, by tensor"""
    index = read_object(path, MOST_TABLE_BYTES, WeightsError).get("weight_map")
    if not isinstance(index, dict) or not index or not all(_is_file_name(file) for file in index.values()):
        raise WeightsError(f"{path}: 'weight_map' must map tensor names to file names")
    return index


def _is_file_name(value: object) -> bool:
    """A shard lies beside its index: no path that could lead elsewhere."""
    return isinstance(value, str) and Path(value).name == value
