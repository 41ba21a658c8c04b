"""From what was typed, or written in a config file, to words that a plain argument parser understands.

Dashes and underscores are the same; dotted keys (`--hf-overrides.rope_theta 1e6`, `-cc.mode=3`, `--x.list+ a,b`) become
JSON objects; `-O3` becomes `--optimization-level 3`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cadence.config.command_line import values
from cadence.config.command_line.yaml_text import yaml_content
from cadence.core.errors import ConfigError

_DOTTED = re.compile(r"(--?[A-Za-z][A-Za-z0-9_-]*)\.([A-Za-z0-9_.-]+\+?)(?:=(.*))?", re.DOTALL)
_LEVEL = re.compile(r"-O=?(\w+)")
_HUMAN_NUMBER = re.compile(r'("(?:[^"\\]|\\.)*")|(?<![\w.])(\d+(?:\.\d+)?[kKmMgGtT])(?!\w)')


def normalise(argv: Sequence[str]) -> list[str]:
    tokens = list(argv)
    end = tokens.index("--") if "--" in tokens else len(tokens)
    return [word for group in grouped(tokens[:end]) for word in _plain(group)] + tokens[end:]


def grouped(tokens: Sequence[str]) -> list[list[str]]:
    """A dotted key keeps its value, and `-O` its JSON; everything else stands alone."""
    groups: list[list[str]] = []
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        takes_value = bool(rest) and _takes_value(token, rest[0])
        groups.append([token, rest.pop(0)] if takes_value else [token])
    return groups


def is_dotted(token: str) -> bool:
    return _DOTTED.fullmatch(token) is not None


def _takes_value(token: str, following: str) -> bool:
    if token == "-O":
        return following.startswith("{")
    return is_dotted(token) and "=" not in token and not following.startswith("--")


def _plain(group: list[str]) -> list[str]:
    token, *value = group
    if token.startswith("-O") and not token.startswith("--"):
        token = "--compilation-config" if value and token == "-O" else _optimization(token)
    if match := _DOTTED.fullmatch(token):
        flag, path, text = match.groups()
        return [_dashed(flag), _nested(path, text if text is not None else value[0] if value else "true")]
    if token.startswith("--"):
        name, equals, text = token.partition("=")
        token = _dashed(name) + equals + text
    return [token, *value]


def _optimization(token: str) -> str:
    """`-O3`, `-O=3` and `-O 3` are a level; `-O.key=value` and `-O JSON` were the compilation's options once."""
    if level := _LEVEL.fullmatch(token):
        return f"--optimization-level={level[1]}"
    return token.replace("-O.", "-cc.", 1)


def repeated(argv: Sequence[str]) -> list[str]:
    """Flags and dotted keys that are given more than once, without those that add to a list (`--x.list+`)."""
    names: Counter[str] = Counter()
    for token in argv:
        if token == "--":
            break
        name = token.partition("=")[0]
        if name.startswith("--") or is_dotted(token):
            head, dot, path = name.partition(".")
            names[_dashed(head) + dot + path] += 1
        elif _LEVEL.fullmatch(token):
            names["--optimization-level"] += 1
    return [name for name, count in names.items() if count > 1 and not name.endswith("+")]


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, in which numbers may be written as on a command line (`{"size": 80g}`). Raises ValueError."""
    try:
        found = json.loads(text)
    except ValueError:
        found = json.loads(_HUMAN_NUMBER.sub(lambda match: match[1] or str(values.human_int(match[2])), text))
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def json_list(text: str) -> list[Any]:
    """Raises ValueError where it is none."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("not a list")
    return found


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Key by key, list by list."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = merged(old, value)
        else:
            result[key] = [*old, *value] if isinstance(old, list) and isinstance(value, list) else value
    return result


def literal(text: str) -> Any:
    """The value a text stands for: JSON, None, a number as on a command line (`32k`), or the text itself."""
    if text == "None":
        return None
    for read in (json.loads, values.human_int):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def spelled(name: str) -> str:
    return "--" + _dashed(name)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _nested(path: str, text: str) -> str:
    value = text.split(",") if path.endswith("+") else literal(text)
    for key in reversed(path.removesuffix("+").split(".")):
        value = {key: value}
    return json.dumps(value)


def split_config(tokens: Sequence[str]) -> tuple[str, list[str]]:
    """The file that `--config` names ("" = none), and the other words."""
    for index, token in enumerate(tokens):
        name, equals, value = token.partition("=")
        if token == "--":
            break
        if name == "--config":
            after = index + (1 if equals else 2)
            if not equals and (index + 1 >= len(tokens) or tokens[index + 1].startswith("--")):
                raise ConfigError("--config needs a file", "config")
            rest = [*tokens[:index], *tokens[after:]]
            if split_config(rest)[0]:
                raise ConfigError("--config is given twice", "config")
            return value if equals else tokens[index + 1], rest
    return "", list(tokens)


def config_words(path: Path) -> dict[str, list[str]]:
    """What a config file says, as words of a command line: name with dashes -> words."""
    return {spelled(str(key))[2:]: words_of(spelled(str(key)), value) for key, value in _read_config(path).items()}


def words_of(flag: str, value: Any) -> list[str]:
    """What a config file says of one flag."""
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag[2:]]
    if isinstance(value, dict):
        return [f"{flag}={json.dumps(value)}"]
    items = value if isinstance(value, list) else [value]
    return [f"{flag}={item}" for item in items if item is not None]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}", "config") from None
    try:
        content = json.loads(text) if path.suffix == ".json" else yaml_content(text)
    except ValueError as error:
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}", "config") from None
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path}: expected flag names with values", "config")
    return content
