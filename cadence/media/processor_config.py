"""`preprocessor_config.json` and `processor_config.json`: how a family's pictures are to be prepared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadence.config.files.json_file import MOST_CONFIG_BYTES, read_object
from cadence.core.errors import ModelFileError

VIDEOS = "video_processor"
_FILE, _VIDEO_FILE = "preprocessor_config.json", "video_preprocessor_config.json"


def read_processor_config(directory: Path, defaults: Mapping[str, Any], section: str = "image_processor") -> Any:
    """What the files say over `defaults`. Newer files have a section for each kind in `processor_config.json`, some a
    file for videos."""
    found: dict[str, Any] = {}
    whole = _read(directory / "processor_config.json")
    if isinstance(whole.get(section), dict):
        found = whole[section]
    name = _VIDEO_FILE if section == VIDEOS and (directory / _VIDEO_FILE).exists() else _FILE
    return {**defaults, **whole, **_read(directory / name), **found}


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return read_object(path, MOST_CONFIG_BYTES, lambda message: ModelFileError(message, "model"))
