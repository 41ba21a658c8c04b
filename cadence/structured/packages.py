"""`import xgrammar` without `transformers`, which it imports for two type names and which takes seconds."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from cadence.core.errors import ConfigError


class _StandIn(types.ModuleType):
    """A module that has every class, each of them empty."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **options: None})


def import_xgrammar(stand_ins: tuple[str, ...] = ("transformers",)) -> Any:
    """The package. `stand_ins`: modules that are replaced while it is imported, where they have not been imported yet.
    It cannot follow grammars without torch; it can compile them."""
    if "xgrammar" in sys.modules:
        return sys.modules["xgrammar"]
    if "torch" in stand_ins and "torch" not in sys.modules:
        _import_tvm_ffi()
    missing = [name for name in stand_ins if name not in sys.modules]
    sys.modules.update({name: _StandIn(name) for name in missing})
    try:
        return importlib.import_module("xgrammar")
    except ImportError as error:
        raise ConfigError(
            f"structured output needs the package xgrammar, which cannot be imported ({error}); "
            "pip install 'cadence-llm[structured]'",
            "structured_outputs",
        ) from None
    finally:
        for name in missing:
            del sys.modules[name]


def _import_tvm_ffi() -> None:
    """What xgrammar is written on. Without torch, which it asks for and does not need."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # how Python notes that there is no such module
    try:
        importlib.import_module("tvm_ffi")
    except ImportError:
        pass  # xgrammar says so
    finally:
        del sys.modules["torch"]


def import_llguidance() -> Any:
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise ConfigError(
            f"this structured output needs the package llguidance, which cannot be imported ({error}); "
            "pip install 'cadence-llm[structured]'",
            "structured_outputs",
        ) from None
