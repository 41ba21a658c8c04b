"""Architecture names of Hugging Face configurations -> model classes, imported when asked for."""

from __future__ import annotations

import importlib

from cadence.core.errors import ConfigError
from cadence.core.model.architectures import ARCHITECTURES, unsupported
from cadence.models.decoder import DecoderLM
from cadence.models.encoder import EncoderModel
from cadence.models.encoder_decoder import EncoderDecoderLM
from cadence.models.mapped_module import MappedModule

AnyModel = DecoderLM | EncoderModel | EncoderDecoderLM


def model_class(architecture: str) -> type[AnyModel]:
    """The class, whose constructor takes (hf, build)."""
    if architecture not in ARCHITECTURES:
        raise ConfigError(unsupported(architecture), field="architectures")
    file, _, name = ARCHITECTURES[architecture].partition(":")
    return getattr(importlib.import_module(f"cadence.models.{file}"), name or architecture)


def class_through_transformers() -> type[AnyModel]:
    """The same of models that run through transformers' code; its configuration says which they are."""
    return importlib.import_module("cadence.models.through_transformers.model").ThroughTransformers


def imported(path: str) -> type[AnyModel]:
    """path: "package.module:Class", of a class that is not in this package"""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the class {path}, which was registered, cannot be imported: {error}", "architectures"
        ) from None
    if not isinstance(found, type) or not issubclass(found, MappedModule):
        message = "a model is a class over cadence.models.decoder.DecoderLM (docs/how_to_add_a_model.md)"
        raise ConfigError(f"{path} is none that runs here: {message}", "architectures")
    return found
