"""YAML, where the package that reads it is installed."""

from __future__ import annotations

from typing import Any


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
