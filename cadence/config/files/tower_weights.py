"""Whether a checkpoint has the tower that its configuration describes: some have a language model alone."""

from __future__ import annotations

from pathlib import Path

from cadence.config.files.json_file import MOST_TABLE_BYTES

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_TOWER = b"vision_tower."  # in names of its tensors

MAY_LACK = ("Gemma3ForConditionalGeneration",)


def lacks_tower(directory: Path) -> bool:
    """False where nothing says so. Whether files are sound is seen when the weights are loaded."""
    try:
        for name in (_INDEX, _SINGLE):
            if (directory / name).is_file():
                return _TOWER not in _names(directory / name)
    except OSError:
        pass
    return False


def _names(path: Path) -> bytes:
    """What has the names of all tensors in it."""
    with open(path, "rb") as file:
        if path.name == _INDEX:
            return file.read(MOST_TABLE_BYTES)
        size = int.from_bytes(file.read(8), "little")
        return file.read(min(size, MOST_TABLE_BYTES))
