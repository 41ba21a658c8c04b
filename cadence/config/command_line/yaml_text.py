"""YAML, where the package that reads it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cadence.core.errors import ConfigError


def read_content(path: str, flag: str, field: str) -> Any:
    """Of a YAML or JSON file that a flag names."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        return json.loads(text) if path.endswith(".json") else yaml_content(text)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror}", field) from None
    except ValueError as error:
        raise ConfigError(f"{flag} {path}: {' '.join(str(error).split())}", field) from None


def yaml_content(text: str) -> Any:
    """Raises ValueError."""
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs the package PyYAML; or write the file as .json") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
