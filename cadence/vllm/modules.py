"""Modules made from the table in `names.py`, under the name `vllm` and under `cadence.vllm`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from cadence.vllm.missing import missing
from cadence.vllm.names import COMMANDS, MISSING, MODULES

_HERE = str(Path(__file__).resolve())


def install(root: str) -> None:
    """From now on `root.x` is found in the table, as far as `root` has no file for it."""
    if not any(isinstance(finder, Finder) and finder.root == root for finder in sys.meta_path):
        sys.meta_path.append(Finder(root))


def open_module(namespace: dict[str, Any], name: str) -> None:
    """Gives a module the names the table lists for `name` ("" = the package itself), each looked up when asked for."""
    listed = MODULES.get(name, {})

    def look_up(attribute: str) -> Any:
        if attribute in listed:
            value = _find(listed[attribute], attribute)
            namespace[attribute] = value
            return value
        if attribute == "__path__" or attribute.startswith("__"):
            raise AttributeError(attribute)
        full = f"{name}.{attribute}".lstrip(".")
        if full in PACKAGES or full in MODULES:
            return importlib.import_module(f"{namespace['__name__']}.{attribute}")
        raise AttributeError(
            f"{namespace['__name__']} has no {attribute!r} here: docs/using/from_vllm.md lists what there is"
        )

    namespace["__getattr__"] = look_up
    namespace["__dir__"] = lambda: sorted(listed)
    namespace["__all__"] = [attribute for attribute in listed if not attribute.startswith("_")]


class Finder(MetaPathFinder):
    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self.root + "."):
            return None
        name = fullname.removeprefix(self.root + ".")
        if name not in MODULES and name not in PACKAGES and name not in COMMANDS:
            if name.startswith("__"):
                return None
            raise ModuleNotFoundError(
                f"{fullname} has no counterpart in Cadence: docs/using/from_vllm.md lists what there is", name=fullname
            )
        return ModuleSpec(fullname, TableLoader(name), origin=_HERE, is_package=name not in COMMANDS)


class TableLoader(Loader):
    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        open_module(vars(module), self._name)

    def get_code(self, fullname: str) -> CodeType:
        """What `python -m` runs."""
        if self._name not in COMMANDS:
            return compile("", _HERE, "exec")
        words = COMMANDS[self._name].split()
        text = f"import sys\nfrom cadence.entrypoints.cli.main import main\nsys.exit(main([*{words!r}, *sys.argv[1:]]))"
        return compile(text, _HERE, "exec")


def _find(where: str, attribute: str) -> Any:
    """`where` is a module of Cadence, `module:name`, or a key of MISSING with a leading !."""
    if where.startswith("!"):
        return missing(attribute, MISSING[where[1:]])
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name or attribute)


def _packages() -> frozenset[str]:
    """Every name with something below it."""
    return frozenset(name.rpartition(".")[0] for name in _with_parents()) - {""}


def _with_parents() -> set[str]:
    names = {*MODULES, *COMMANDS} - {""}
    return names | {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}


PACKAGES = _packages()
