"""Which file holds the tower of a model whose language part is in a GGUF file: the one that is named, or one beside it
that fits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cadence import gguf
from cadence.config.reference import ModelFiles, find_model, is_tower
from cadence.core.errors import CadenceError, ConfigError

logger = logging.getLogger("cadence.engine")

NONE = "none"  # texts alone
_FIRST = ("f16", "bf16", "f32")  # of several that differ in how they are stored


def with_tower(files: ModelFiles, named: str | None, **hub: str) -> ModelFiles:
    """named: a file, `org/name:file.gguf` or `NONE`; hub: as `find_model` takes it"""
    if named is not None and files.gguf is None:
        message = f"mmproj={named}: {files.name} is no .gguf file; towers of others are among their own weights"
        raise ConfigError(message, "mmproj")
    if files.gguf is None or named == NONE:
        return files
    if named is None:
        return replace(files, tower=next(_fitting(files.gguf), None))
    tower = find_model(named, **hub).gguf
    if tower is None:
        raise ConfigError(f"mmproj={named}: must be a .gguf file", "mmproj")
    return replace(files, tower=tower)


def _fitting(model: Path) -> Iterator[Path]:
    beside = (path for path in model.parent.glob("*.gguf") if is_tower(path) and path != model)
    for path in sorted(beside, key=_rank):
        try:
            gguf.read_config(model, path)
        except CadenceError as error:
            logger.warning("%s is passed over: %s", path.name, error)
        else:
            logger.info("pictures are seen by %s (--mmproj names another file, or %s)", path.name, NONE)
            yield path


def _rank(path: Path) -> tuple[int, str]:
    """A name says how it is stored."""
    name = path.name.lower()
    kind = "bf16" if "bf16" in name else next((each for each in _FIRST if each in name), "")
    return (*_FIRST, "").index(kind), name
