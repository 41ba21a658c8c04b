"""The folder that a command writes a model into."""

from __future__ import annotations

from pathlib import Path

from cadence.core.errors import ConfigError


def check_output(output: Path) -> None:
    """Raises where something is there that would be lost or mixed with what is written."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output}: it is there, and not an empty folder", "output")
