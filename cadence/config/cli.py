"""Command-line flags derived from fields: the types from annotations, the help from metadata.

Dashes and underscores are the same; switches have a `--no-` form; objects are JSON or dotted keys
(`--hf-overrides.rope_theta 1e6`); `--config FILE` holds flags in YAML or JSON, and flags given by hand win over it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cadence.config import args as engine_args
from cadence.config import refused, values
from cadence.config.args import EngineArgs
from cadence.core.errors import ConfigError

_DOTTED = re.compile(r"(--?[A-Za-z][A-Za-z0-9_-]*)\.([A-Za-z0-9_.-]+)(?:=(.*))?", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    name: str  # with underscores
    hint: Any
    help: str
    choices: tuple[str, ...] = ()
    default: Any = None

    @property
    def is_switch(self) -> bool:
        return values.parts(self.hint) == [bool]

    @property
    def is_list(self) -> bool:
        return any(typing.get_origin(part) is list for part in values.parts(self.hint))

    @property
    def is_dict(self) -> bool:
        return any(typing.get_origin(part) is dict for part in values.parts(self.hint))


class Parser(argparse.ArgumentParser):
    """Complains in one line and leaves with status 2."""

    def __init__(self, prog: str, description: str, epilog: str = "", positional: str = "") -> None:
        usage = " ".join(filter(None, [prog, "[flags]", positional]))
        super().__init__(prog=prog, usage=usage, description=description, epilog=epilog, allow_abbrev=False)
        self.add_argument("--config", metavar="FILE", help="take flags from a YAML or JSON file")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        tokens = normalise(argv)
        try:
            tokens = with_config_file(tokens)
        except ConfigError as error:
            self.error(str(error))
        namespace, rest = self.parse_known_args(tokens)
        if unknown := next((token for token in rest if token.startswith("-") and token != "-"), ""):
            name = unknown.split("=")[0]
            self.error(f"unknown flag {name}{engine_args.nearest(name, self.flags())}")
        if rest:
            self.error(f"unexpected argument {rest[0]!r}; put a text with spaces in quotes")
        return namespace

    def flags(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings if name.startswith("--")]


class _MergeObject(argparse.Action):
    """JSON objects and dotted keys of one option add up, key by key."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, flag: str | None = None
    ) -> None:
        try:
            merged = _merged(getattr(namespace, self.dest, {}), json.loads(value))
        except (ValueError, AttributeError):
            raise argparse.ArgumentError(self, f"{value!r} is not a JSON object") from None
        setattr(namespace, self.dest, merged)


def engine_flags() -> list[Flag]:
    hints = engine_args.hints()
    return [
        Flag(field.name, hints[field.name], field.metadata["help"], field.metadata["choices"], field.default)
        for field in dataclasses.fields(EngineArgs)
    ]


def add_engine_flags(parser: argparse.ArgumentParser, without: Iterable[str] = ()) -> None:
    """Every engine option as a flag, and hidden ones for the names that are refused with a sentence."""
    group = parser.add_argument_group("engine")
    for flag in engine_flags():
        if flag.name not in set(without):
            add_flag(group, flag)
    for name, refusal in refused.REFUSED.items():
        kinds = {type(value) for value in refusal.neutral}
        _add_hidden(group, name, switch=bool in kinds, structured=dict in kinds or name.endswith("_config"))
    for name in refused.HARMLESS:
        _add_hidden(group, name, switch=name in refused.HARMLESS_SWITCHES, structured=False)


def engine_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """The engine options given on the command line, and only those."""
    known = {*engine_args.names(), *refused.REFUSED, *refused.HARMLESS}
    return {name: value for name, value in vars(namespace).items() if name in known}


def add_flag(group: argparse._ActionsContainer, flag: Flag) -> None:
    """Absent flags leave no trace in the namespace: defaults belong to the dataclass."""
    shown = "" if flag.default in (None, "", dataclasses.MISSING) else f" [{flag.default}]"
    text = (flag.help + shown).replace("%", "%%")
    option: dict[str, Any] = {"dest": flag.name, "default": argparse.SUPPRESS, "help": text}
    if flag.is_switch:
        option["action"] = argparse.BooleanOptionalAction
    elif flag.is_dict:
        option |= {"action": _MergeObject, "metavar": "JSON"}
    else:
        kind = values.parts(flag.hint)[-1]
        option["metavar"] = "{" + ",".join(flag.choices) + "}" if flag.choices else _METAVARS.get(kind, "TEXT")
        option["action"] = "append" if flag.is_list else "store"
    group.add_argument(_spelled(flag.name), **option)


_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


def _add_hidden(group: argparse._ActionsContainer, name: str, switch: bool, structured: bool) -> None:
    spellings = [_spelled(name), *([refused.SHORT_FLAGS[name]] if name in refused.SHORT_FLAGS else [])]
    hidden: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    if switch:
        group.add_argument(*spellings, **hidden, action=argparse.BooleanOptionalAction)
    elif structured:
        group.add_argument(*spellings, **hidden, action=_MergeObject)
    else:
        group.add_argument(*spellings, **hidden, type=_literal)


def normalise(argv: Sequence[str]) -> list[str]:
    """Underscores in flag names become dashes; dotted keys become JSON objects."""
    tokens = list(argv)
    result: list[str] = []
    while tokens:
        token = tokens.pop(0)
        if token == "--":
            return [*result, token, *tokens]
        if match := _DOTTED.fullmatch(token):
            flag, path, value = match.groups()
            if value is None:
                value = tokens.pop(0) if tokens and not tokens[0].startswith("--") else "true"
            result += [flag.replace("_", "-"), _nested(path, value)]
        elif token.startswith("--"):
            name, equals, value = token.partition("=")
            result.append(name.replace("_", "-") + equals + value)
        else:
            result.append(token)
    return result


def _nested(path: str, text: str) -> str:
    value = _literal(text)
    for key in reversed(path.split(".")):
        value = {key.replace("-", "_"): value}
    return json.dumps(value)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def with_config_file(tokens: list[str]) -> list[str]:
    for index, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        if token == "--":
            return tokens
        if name == "--config":
            if not equals and index + 1 >= len(tokens):
                raise ConfigError("--config needs a file", "config")
            rest = tokens[:index] + tokens[index + (1 if equals else 2) :]
            return [*_config_tokens(Path(value if equals else tokens[index + 1])), *rest]
    return tokens


def _config_tokens(path: Path) -> list[str]:
    tokens: list[str] = []
    for key, value in _read_config(path).items():
        flag = _spelled(str(key))
        if isinstance(value, bool):
            tokens.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, dict):
            tokens.append(f"{flag}={json.dumps(value)}")
        elif value is not None:
            tokens += [f"{flag}={item}" for item in (value if isinstance(value, list) else [value])]
    return tokens


def _read_config(path: Path) -> dict[str, Any]:
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}", "config") from None
    try:
        content = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}", "config") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: expected flag names with values", "config")
    return content


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs the package PyYAML; or write the file as .json") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


def fail(prog: str, error: Exception, status: int = 2) -> NoReturn:
    """The one way a command ends on a mistake: a line on stderr. Status 2 is the user's, 1 that of a model's files."""
    print(f"{prog}: {' '.join(str(error).split())}", file=sys.stderr)
    raise SystemExit(status)
