"""`preprocessor_config.json` and `processor_config.json`: how a family's pictures are to be prepared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadence.config.files.json_file import MOST_CONFIG_BYTES, read_object
from cadence.config.files.processor_fields import check_processor
from cadence.config.files.section_defaults import with_section_defaults
from cadence.core.errors import ModelFileError

_MOST_PIXELS = 1 << 14  # of a side: no processor asks for more


def read_processor_config(directory: Path, defaults: Mapping[str, Any], section: str = "image_processor") -> Any:
    """What the files say over `defaults`. Newer files have a section for each kind in `processor_config.json`."""
    found: dict[str, Any] = {}
    path = directory / "processor_config.json"
    whole = _read(path)
    if isinstance(whole.get(section), dict):
        found = check_processor(whole[section], path)
    return {**defaults, **whole, **_read(directory / "preprocessor_config.json"), **found}


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return check_processor(read_object(path, MOST_CONFIG_BYTES, lambda message: ModelFileError(message, "model")), path)


def side_of(settings: Mapping[str, Any], name: str, *keys: str) -> int:
    """Pixels of a side, from the first of these keys that `settings[name]` has; a number alone stands for all."""
    size = settings.get(name)
    told = next((size[key] for key in keys if size.get(key)), None) if isinstance(size, Mapping) else size
    if not isinstance(told, int) or not 0 < told <= _MOST_PIXELS:
        message = f"{name} must have {' or '.join(keys)} of 1 to {_MOST_PIXELS} pixels, found {size!r:.100}"
        raise ModelFileError(message, name)
    return told


def filled_config(config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """config.json with what its sections leave out."""
    return with_section_defaults(config, (config.get("architectures") or [""])[0], directory / "config.json")
