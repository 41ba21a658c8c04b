"""`preprocessor_config.json` and `processor_config.json`: how a family's pictures are to be prepared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadence.config.files.json_file import MOST_CONFIG_BYTES, read_object
from cadence.config.files.processor_fields import check_processor
from cadence.config.files.section_defaults import with_section_defaults
from cadence.core.errors import ModelFileError
from cadence.core.inputs.media import PROCESSOR_FIELD
from cadence.media.family import FamilyFiles
from cadence.media.processor_kwargs import FIELD

VIDEOS = "video_processor"
_FILE, _VIDEO_FILE = "preprocessor_config.json", "video_preprocessor_config.json"
_MOST_PIXELS = 1 << 14  # of a side: no processor asks for more


class ProcessorSettings(dict[str, Any]):
    """What the files of a model say, over what a family takes where they say nothing."""

    def __init__(self, file: Path, told: Mapping[str, Any]) -> None:
        """file: that messages name"""
        super().__init__(told)
        self._file = file

    def side(self, name: str, *keys: str) -> int:
        """Pixels of a side, from the first of these keys that the size `name` has; a number alone stands for all."""
        size = self.get(name)
        told = next((size[key] for key in keys if size.get(key)), None) if isinstance(size, Mapping) else size
        if not isinstance(told, int) or not 0 < told <= _MOST_PIXELS:
            found = f"{size!r:.100}"
            raise self.wrong(name, f"must have {' or '.join(keys)} of 1 to {_MOST_PIXELS} pixels, found {found}")
        return told

    def told(self, name: str, default: Any) -> Any:
        """What is null counts as not told."""
        value = self.get(name)
        return default if value is None else value

    def with_changes(self, changes: Mapping[str, Any]) -> ProcessorSettings:
        return ProcessorSettings(self._file, {**self, **changes})

    def without(self, *names: str) -> ProcessorSettings:
        return ProcessorSettings(self._file, {name: value for name, value in self.items() if name not in names})

    def wrong(self, name: str, message: str) -> ModelFileError:
        return ModelFileError(f"{self._file}: {name!r} {message}", name)


def read_processor_config(
    files: FamilyFiles, defaults: Mapping[str, Any], section: str = "image_processor"
) -> ProcessorSettings:
    """Newer files have a section for each kind in `processor_config.json`, some a file for videos; a tower in a GGUF
    file says itself what it takes."""
    settings = _settings(files, defaults, section)
    changes = check_processor(files.changes, Path(FIELD))
    if "size" in changes:  # older names of the same
        settings = settings.without("min_pixels", "max_pixels")
    return settings.with_changes(changes)


def _settings(files: FamilyFiles, defaults: Mapping[str, Any], section: str) -> ProcessorSettings:
    found: dict[str, Any] = {}
    directory = files.directory
    if (told := files.config.get(PROCESSOR_FIELD)) is not None:
        path = Path(told["file"])
        told = {name: value for name, value in told.items() if section != VIDEOS or name != "size"}
        return ProcessorSettings(path, {**defaults, **check_processor(told, path)})
    path = directory / "processor_config.json"
    whole = _read(path)
    if isinstance(whole.get(section), dict):
        found = check_processor(whole[section], path)
    file = directory / (_VIDEO_FILE if section == VIDEOS and (directory / _VIDEO_FILE).exists() else _FILE)
    return ProcessorSettings(file, {**defaults, **whole, **_read(file), **found})


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return check_processor(read_object(path, MOST_CONFIG_BYTES, lambda message: ModelFileError(message, "model")), path)


def filled_config(config: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """config.json with what its sections leave out."""
    return with_section_defaults(config, (config.get("architectures") or [""])[0], directory / "config.json")
