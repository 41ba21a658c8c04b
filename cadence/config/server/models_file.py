"""`--models`: which models a server has, and when each comes into memory and leaves it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cadence.config.args import EngineArgs
from cadence.config.command_line.yaml_text import read_content
from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError

MOST_MODELS = 256
LOADS = ("first_request", "start")
IDLE = ("unload", "sleep")
_FIELD = "models"
_FILES = (".yaml", ".yml", ".json")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model, as the operator wrote it."""

    name: str  # in the API
    model: str  # as after `cadence serve`
    aliases: tuple[str, ...] = ()  # other names of it
    options: dict[str, Any] = field(default_factory=dict)  # flags of `cadence serve` that are of one model
    load: str = "first_request"
    keep_alive: float = math.inf  # seconds without a request after which it leaves memory
    idle: str = "unload"  # how it leaves: sleep = the engine stays, and lets its memory go
    pinned: bool = False  # does not leave memory, once it is there
    default: bool = False  # answers requests that name no model

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """One model, with all options that it is served with."""

    entry: ModelEntry
    args: EngineArgs
    options: ServeOptions


def models_of(words: Sequence[str]) -> tuple[ModelEntry, ...]:
    """Of the words after `--models`: files, `NAME=MODEL`, or models that go by their own names."""
    found: list[ModelEntry] = []
    for word in words:
        found += read_models(word) if word.endswith(_FILES) and "=" not in word else [_short(word)]
    if not 1 <= len(found) <= MOST_MODELS:
        raise ConfigError(f"--models: expected 1 to {MOST_MODELS} models, found {len(found)}", _FIELD)
    names = [name for entry in found for name in entry.names]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ConfigError(f"--models: two models are named {twice}", _FIELD)
    if sum(entry.default for entry in found) > 1:
        raise ConfigError("--models: two models are the default", _FIELD)
    return tuple(found)


def read_models(path: str) -> list[ModelEntry]:
    """A YAML or JSON file: {"models": [{"name": …, "model": …, "options": {…}, …}, …]}."""
    content = read_content(path, "--models", _FIELD)
    listed = content.get("models") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not listed or set(content) != {"models"}:
        raise ConfigError(f"--models {path}: expected `models`, a list of models", _FIELD)
    return [_entry(each, f"--models {path}: model {number}") for number, each in enumerate(listed, 1)]


def seconds_of(given: object) -> float:
    """`300`, `"300"`, `"5m"`, `"1h30m"`: seconds; whatever is negative: without end. Raises ValueError."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError("expected seconds, or a duration such as 5m")
    text = str(given).strip()
    is_negative = text.startswith("-")
    text = text.removeprefix("-")
    if _DURATION.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    else:
        seconds = float(text) if re.fullmatch(r"\d+(\.\d+)?(e\d+)?|inf", text) else math.nan
    if math.isnan(seconds):
        raise ValueError("expected seconds, or a duration such as 5m")
    return math.inf if is_negative else seconds


def _short(word: str) -> ModelEntry:
    name, equals, model = word.partition("=")
    if not equals:
        model, name = word, Path(word).name.removesuffix(".gguf")
    if not (name and model):
        raise ConfigError(f"--models {word}: expected NAME=MODEL, or a .yaml or .json file", _FIELD)
    return ModelEntry(_name(name, f"--models {word}: the name"), model)


def _entry(given: Any, where: str) -> ModelEntry:
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: expected `name`, `model` and others", _FIELD)
    known = [one.name for one in fields(ModelEntry)]
    if unknown := sorted(set(map(str, given)) - set(known)):
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(known)}", _FIELD)
    model = given.get("model")
    if not isinstance(model, str) or not model:
        raise ConfigError(f"{where}: `model` must be an alias, a path or a hub id", _FIELD)
    name = _name(given.get("name", Path(model).name.removesuffix(".gguf")), f"{where}: `name`")
    where = f"{where} ({name})"
    return ModelEntry(
        name=name,
        model=model,
        aliases=tuple(_name(alias, f"{where}: an alias") for alias in _list(given, "aliases", where)),
        options=_options(given.get("options"), where),
        load=_choice(given, "load", LOADS, where),
        keep_alive=_keep_alive(given.get("keep_alive", -1), where),
        idle=_choice(given, "idle", IDLE, where),
        pinned=_truth(given, "pinned", where),
        default=_truth(given, "default", where),
    )


def _name(given: Any, what: str) -> str:
    if not isinstance(given, str) or not given.isprintable() or not 1 <= len(given) <= 256 or given != given.strip():
        raise ConfigError(f"{what} must be a text of 1 to 256 characters", _FIELD)
    return given


def _list(given: dict[str, Any], name: str, where: str) -> list[Any]:
    found = given.get(name) or []
    if not isinstance(found, list):
        raise ConfigError(f"{where}: `{name}` must be a list", _FIELD)
    return found


def _options(given: Any, where: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: `options` must be names of flags with values", _FIELD)
    return {str(name): value for name, value in given.items()}


def _choice(given: dict[str, Any], name: str, choices: tuple[str, ...], where: str) -> str:
    found = given.get(name, choices[0])
    if found not in choices:
        raise ConfigError(f"{where}: {name}={found!r} is not one of {', '.join(choices)}", _FIELD)
    return str(found)


def _truth(given: dict[str, Any], name: str, where: str) -> bool:
    found = given.get(name, False)
    if not isinstance(found, bool):
        raise ConfigError(f"{where}: `{name}` must be true or false", _FIELD)
    return found


def _keep_alive(given: Any, where: str) -> float:
    try:
        return seconds_of(given)
    except ValueError as error:
        raise ConfigError(f"{where}: keep_alive={given!r}: {error}", _FIELD) from None
