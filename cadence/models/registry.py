"""Architecture names of Hugging Face configurations -> model classes, imported when asked for."""

from __future__ import annotations

import difflib
import importlib

from cadence.config.architectures import ARCHITECTURES
from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM


def architectures() -> list[str]:
    return sorted(ARCHITECTURES)


def model_class(architecture: str) -> type[DecoderLM]:
    """The class, whose constructor takes (hf, build)."""
    if architecture not in ARCHITECTURES:
        nearest = difflib.get_close_matches(architecture, ARCHITECTURES, n=1, cutoff=0.0)[0]
        known = ", ".join(architectures())
        message = f"architecture {architecture!r} is not supported (nearest: {nearest}; all: {known})"
        raise ConfigError(message, field="architectures")
    module = importlib.import_module(f"cadence.models.{ARCHITECTURES[architecture]}")
    return getattr(module, architecture)
