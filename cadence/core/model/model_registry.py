"""Architectures that others add: a program by `ModelRegistry.register_model`, an installed package by an entry point.

| group of entry points | an entry |
|---|---|
| `cadence.models` | the architecture's name = `package.module:Class`; nothing is imported until it is asked for |
| `cadence.general_plugins` | a function that registers what it likes, called once in every process |

Packages are asked where an architecture is none of ours; a program may also put a class in the place of one of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from cadence.core.errors import ConfigError
from cadence.core.model.architectures import ARCHITECTURES
from cadence.core.model.model_heads import MODEL_CLASSES, classes_of

MODELS, PLUGINS = "cadence.models", "cadence.general_plugins"
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_]\w{0,255}")

_classes: dict[str, str] = {}  # architecture -> "package.module:Class"


class ModelRegistry:
    """The architectures there are."""

    @staticmethod
    def get_supported_archs() -> set[str]:
        _find_packages()
        return set(MODEL_CLASSES)

    @staticmethod
    def register_model(model_arch: str, model_cls: type | str) -> None:
        """From now on this class computes the architecture. model_cls: the class, or "package.module:Class", which is
        imported when a model is loaded."""
        path = model_cls if isinstance(model_cls, str) else _path_of(model_arch, model_cls)
        if not isinstance(model_arch, str) or not _NAME.fullmatch(model_arch):
            raise ConfigError(f"{model_arch!r} is no name of an architecture", "architectures")
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            raise ConfigError(f"{model_arch}: {path!r} is not of the form package.module:Class", "architectures")
        _classes[model_arch] = path
        MODEL_CLASSES.update(classes_of(model_arch))


def class_path(architecture: str) -> str:
    """ "package.module:Class" of one that others have added; "" of ours"""
    return _classes.get(architecture, "")


def is_known(architecture: str) -> bool:
    """Whether there is a class for it, of ours or of others."""
    if architecture not in MODEL_CLASSES:
        _find_packages()
    return architecture in MODEL_CLASSES


def registered() -> dict[str, str]:
    """What others have added so far, for another process to add as well."""
    return dict(_classes)


def _path_of(architecture: str, model_class: object) -> str:
    if not isinstance(model_class, type):
        raise ConfigError(f"{architecture}: {model_class!r} is no class", "architectures")
    if model_class.__module__ == "__main__" or "<" in model_class.__qualname__:
        message = f"{model_class.__qualname__} cannot be imported by another process: put it into a module of its own"
        raise ConfigError(f"{architecture}: {message}", "architectures")
    return f"{model_class.__module__}:{model_class.__qualname__}"


@cache
def _find_packages() -> None:
    from importlib.metadata import entry_points  # takes a tenth of a second

    for entry in entry_points(group=MODELS):
        if entry.name not in ARCHITECTURES and entry.name not in _classes:
            ModelRegistry.register_model(entry.name, entry.value)
    for entry in entry_points(group=PLUGINS):
        try:
            plugin: Callable[[], None] = entry.load()
            plugin()
        except Exception as error:
            message = f"the plugin {entry.name} ({entry.value}) failed: {type(error).__name__}: {error}"
            raise ConfigError(message, "architectures") from error
