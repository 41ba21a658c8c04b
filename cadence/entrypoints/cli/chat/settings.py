"""The sampling options of a chat, changed with `/set` while it goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cadence.config.args import nearest
from cadence.config.command_line import values
from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.cli.shared.sampling import sampling_types

DEFAULT = "default"  # the value that takes a setting back


class ChatSettings:
    """`given` holds what was asked for, checked; everything else is left to the model or the server."""

    def __init__(self, given: Mapping[str, Any], max_tokens: int) -> None:
        self.given = dict(given)
        self._max_tokens = max_tokens  # where none is given
        self._types = {**sampling_types(), "seed": int}

    @property
    def names(self) -> list[str]:
        return list(self._types)

    def set(self, name: str, text: str) -> str:
        """Returns what holds now. Raises CadenceError, with nothing changed."""
        name = self.known(name)
        if text == DEFAULT:
            self.given.pop(name, None)
            return self.describe(name)
        given = {**self.given, name: values.coerce(name, self._types[name], _parsed(name, text))}
        SamplingParams(**{"max_tokens": self._max_tokens, **given})
        self.given = given
        return self.describe(name)

    def known(self, name: str) -> str:
        found = name.replace("-", "_")
        if found not in self._types:
            raise InvalidRequestError(f"no setting {name} (/set lists them){nearest(found, self._types)}", name)
        return found

    def describe(self, name: str) -> str:
        return (
            f"{name} = {json.dumps(self.given[name], ensure_ascii=False)}" if name in self.given else f"{name}: default"
        )

    def __str__(self) -> str:
        rest = [name for name in self._types if name not in self.given]
        lines = [self.describe(name) for name in self.given]
        return "\n".join([*lines, f"default: {', '.join(rest)}"])


def _parsed(name: str, text: str) -> Any:
    """Lists, objects and quoted texts are JSON, so that a stop may hold a line break; the rest is taken as it is."""
    if text[:1] not in ("[", "{", '"'):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{name}={text} is not valid JSON: {error}", name) from None
