"""The adapters that a server serves, each under a name of its own: clients ask for one as `model`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.core.lora_request import LoRARequest

MOST_ADAPTERS = 1024  # names
_LONGEST_PATH = 4096  # characters; Linux has as many bytes
_FILES = ("adapter_config.json", "adapter_model.safetensors")


class AdapterPathError(InvalidRequestError):
    """There is nothing at the path of an adapter."""


class ServedAdapters:
    """Names are given and taken on the server's event loop; a request keeps the adapter that it found."""

    def __init__(self, model_names: Sequence[str], root: str = "") -> None:
        """root: the directory under which those lie that are added later; "" = anywhere"""
        self._taken = frozenset(model_names)
        self._root = Path(root).resolve() if root else None
        self._by_name: dict[str, LoRARequest] = {}
        self._last = 0

    def of(self, name: str | None) -> LoRARequest | None:
        """What the model answers with under this name; None: it answers as it is."""
        return self._by_name.get(name or "")

    def given(self, name: str | None) -> dict[str, LoRARequest]:
        """What the engine is told of it."""
        adapter = self.of(name)
        return {} if adapter is None else {"lora_request": adapter}

    def all(self) -> list[LoRARequest]:
        return list(self._by_name.values())

    def check(self, name: str, path: str) -> LoRARequest:
        """Raises InvalidRequestError for one that cannot be added."""
        if not name:
            raise InvalidRequestError("lora_name must not be empty", "lora_name")
        if name in self._taken or name in self._by_name:
            raise name_taken(name)
        if len(self._by_name) >= MOST_ADAPTERS:
            raise InvalidRequestError(f"at most {MOST_ADAPTERS} adapters are served; unload one first", "lora_name")
        place = _resolved(path)
        if self._root is not None and not place.is_relative_to(self._root):
            raise InvalidRequestError("lora_path must lie under the directory that --lora-root names", "lora_path")
        self._check_files(place)
        self._last += 1
        return LoRARequest(name, self._last, str(place))

    def _check_files(self, place: Path) -> None:
        """They are there, and no link leads out of the root."""
        if not place.exists():
            raise AdapterPathError(f"lora_path {str(place)!r} does not exist", "lora_path")
        if missing := [file for file in _FILES if not (place / file).is_file()]:
            raise InvalidRequestError(f"lora_path has no {missing[0]}: it must be a PEFT directory", "lora_path")
        if self._root is None:
            return
        for file in _FILES:
            if not (place / file).resolve().is_relative_to(self._root):
                raise InvalidRequestError(f"lora_path has a {file} that leads out of --lora-root", "lora_path")

    def add(self, adapter: LoRARequest) -> None:
        self._last = max(self._last, adapter.lora_int_id)
        self._by_name[adapter.lora_name] = adapter

    def set(self, adapters: Iterable[LoRARequest]) -> None:
        """These, and no others."""
        self._by_name = {adapter.lora_name: adapter for adapter in adapters}

    def remove(self, name: str) -> LoRARequest | None:
        """Those that run go on with it. -> what it was; None = there is none"""
        return self._by_name.pop(name, None)


def _resolved(path: str) -> Path:
    """Refuses what no file system could name: a file there is looked for."""
    if len(path) > _LONGEST_PATH:
        raise InvalidRequestError(f"lora_path cannot be longer than {_LONGEST_PATH} characters", "lora_path")
    try:
        place = Path(path).resolve()
        (place / _FILES[0]).is_file()
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"lora_path cannot be a directory: {_reason(error)}", "lora_path") from None
    return place


def _reason(error: OSError | ValueError) -> str:
    return str((isinstance(error, OSError) and error.strerror) or error)


def name_taken(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"lora_name {name!r} is the name of a model that is served already", "lora_name")


class AdapterLink(Protocol):
    """Changes what this process serves, and all others of its server with it."""

    async def take_number(self, own: int) -> int:
        """One that no other process gives. own: what this one would give"""
        ...

    async def add(self, adapter: LoRARequest) -> bool:
        """False where the name was taken meanwhile."""
        ...

    async def remove(self, name: str) -> LoRARequest | None:
        """-> what it was; None = there is none"""
        ...


class OwnAdapters:
    """Of a server with one process."""

    def __init__(self, served: ServedAdapters) -> None:
        self._served = served

    async def take_number(self, own: int) -> int:
        return own

    async def add(self, adapter: LoRARequest) -> bool:
        self._served.add(adapter)
        return True

    async def remove(self, name: str) -> LoRARequest | None:
        return self._served.remove(name)


def served_at_start(given: Sequence[str], model_names: Sequence[str], root: str, enabled: bool) -> ServedAdapters:
    """given: NAME=PATH, or JSON with `name` and `path`. ConfigError names what is wrong with one."""
    if given and not enabled:
        raise ConfigError("lora_modules needs enable_lora", "lora_modules")
    served = ServedAdapters(model_names, root="")
    for text in given:
        name, path = _name_and_path(text)
        try:
            served.add(served.check(name, path))
        except InvalidRequestError as error:
            raise ConfigError(f"lora_modules {text!r}: {error}", "lora_modules") from None
    later = ServedAdapters(model_names, root)
    for adapter in served.all():
        later.add(adapter)
    return later


def _name_and_path(text: str) -> tuple[str, str]:
    if not text.lstrip().startswith("{"):
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise ConfigError(
                f"lora_modules must be NAME=PATH, or JSON with name and path; got {text!r}", "lora_modules"
            )
        return name, path
    try:
        found = json.loads(text)
        return str(found["name"]), str(found["path"])
    except (ValueError, KeyError):
        raise ConfigError(f"lora_modules as JSON must have name and path; got {text!r}", "lora_modules") from None
