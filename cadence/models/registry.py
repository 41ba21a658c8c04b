"""Architecture names of Hugging Face configurations -> model classes, imported when asked for."""

from __future__ import annotations

import importlib

from cadence.core.architectures import ARCHITECTURES, unsupported
from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM


def model_class(architecture: str) -> type[DecoderLM]:
    """The class, whose constructor takes (hf, build)."""
    if architecture not in ARCHITECTURES:
        raise ConfigError(unsupported(architecture), field="architectures")
    module = importlib.import_module(f"cadence.models.{ARCHITECTURES[architecture]}")
    return getattr(module, architecture)
