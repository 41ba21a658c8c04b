"""What users may ask of a model that gives values in place of text: `runner`, `convert`, `task` and the keys of
`pooler_config`, under vLLM's names.

| `task`, as scripts still have it | means |
|---|---|
| auto | nothing |
| generate | `runner=generate` |
| embed, embedding, token_embed | `runner=pooling`, `convert=embed` |
| classify, score | `runner=pooling`, `convert=classify` |
| token_classify | `runner=pooling` |
| reward | `runner=pooling`, `convert=reward` |
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cadence.config.command_line import values
from cadence.core.errors import ConfigError
from cadence.core.pooled.pooling import ALL, CLS, LAST, MEAN, STEP

OPTION = "pooler_config"
RUNNERS = ("auto", "generate", "pooling")
CONVERTS = ("auto", "none", "embed", "classify", "reward")
_OF_TASK = {
    "auto": ("auto", "auto"),
    "generate": ("generate", "auto"),
    "embed": ("pooling", "embed"),
    "embedding": ("pooling", "embed"),
    "token_embed": ("pooling", "embed"),
    "classify": ("pooling", "classify"),
    "score": ("pooling", "classify"),
    "token_classify": ("pooling", "auto"),
    "reward": ("pooling", "reward"),
}
TASKS = tuple(_OF_TASK)
_OF_TEXT, _OF_TOKENS = (LAST, CLS, MEAN), (ALL, STEP)
_OLDER = {"normalize": "use_activation", "softmax": "use_activation", "activation": "use_activation"}
_REFUSED = {
    "logit_bias": "scores are those of the model's head",
    "logit_mean": "scores are those of the model's head",
    "logit_sigma": "scores are those of the model's head",
    "enable_chunked_processing": "a text is embedded whole, or cut by truncate_prompt_tokens",
    "max_embed_len": "a text is embedded whole, or cut by truncate_prompt_tokens",
}


@dataclass(frozen=True, slots=True)
class PoolerOptions:
    """None = not given: as the model's files say."""

    pooling_type: str | None = None  # last | cls | mean: of a text; all | step: of its tokens
    seq_pooling_type: str | None = None  # of a text
    tok_pooling_type: str | None = None  # of its tokens
    use_activation: bool | None = None  # of scores; of embeddings: to length 1
    dimensions: int | None = None  # entries of an embedding, where a request does not say
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None  # as above, and what is meant where a request names none

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> PoolerOptions:
        """ConfigError names the key."""
        known: dict[str, Any] = {}
        for key, value in given.items():
            name = _OLDER.get(key, key)
            if key in _REFUSED and value not in (None, False, 0):
                raise ConfigError(f"{OPTION}.{key} cannot be honoured: {_REFUSED[key]}", OPTION)
            if name not in _hints() and key not in _REFUSED:
                near = difflib.get_close_matches(key, _hints(), n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(_hints())}"
                raise ConfigError(f"{OPTION} has no key {key!r}{hint}", OPTION)
            if name in _hints() and value is not None:
                known[name] = values.coerce(f"{OPTION}.{key}", _hints()[name], value)
        options = cls(**known)
        options._check()
        return options

    @property
    def of_text(self) -> str | None:
        """How hidden states become one vector."""
        named = self.seq_pooling_type or (self.pooling_type if self.by_token is None else None)
        return named.lower() if named else None

    @property
    def by_token(self) -> str | None:
        """Which hidden states become a vector each."""
        named = (self.tok_pooling_type or self.pooling_type or "").lower()
        return named if named in _OF_TOKENS else None

    def _check(self) -> None:
        for key, allowed in (
            ("pooling_type", (*_OF_TEXT, *_OF_TOKENS)),
            ("seq_pooling_type", _OF_TEXT),
            ("tok_pooling_type", _OF_TOKENS),
        ):
            value = getattr(self, key)
            if value is not None and value.lower() not in allowed:
                known = ", ".join(name.upper() for name in allowed)
                raise ConfigError(f"{OPTION}.{key}={value!r} is not one of {known}", OPTION)
        if self.task not in (None, *TASKS):
            raise ConfigError(f"{OPTION}.task={self.task!r} is not one of {', '.join(TASKS)}", OPTION)
        for key, low in (("dimensions", 1), ("step_tag_id", 0)):
            if (value := getattr(self, key)) is not None and value < low:
                raise ConfigError(f"{OPTION}.{key}={value} must be at least {low}", OPTION)
        if any(each < 0 for each in self.returned_token_ids or ()):
            raise ConfigError(f"{OPTION}.returned_token_ids must be at least 0 each", OPTION)


@dataclass(frozen=True, slots=True)
class AskedRunner:
    runner: str  # auto | generate | pooling
    convert: str  # auto | none | embed | classify | reward


def asked_runner(runner: str, convert: str, task: str | None) -> AskedRunner:
    """`task` says what the other two leave open; ConfigError where they contradict each other."""
    by_task = dict(zip(("runner", "convert"), _OF_TASK[task or "auto"], strict=True))
    found = {}
    for name, value in (("runner", runner), ("convert", convert)):
        if value != "auto" and by_task[name] not in ("auto", value):
            raise ConfigError(f"task={task} means {name}={by_task[name]}, and {name}={value} was given, too", name)
        found[name] = by_task[name] if value == "auto" else value
    if found["runner"] == "generate" and found["convert"] not in ("auto", "none"):
        raise ConfigError(f"convert={found['convert']} is for runner=pooling, and runner=generate was given", "convert")
    return AskedRunner(**found)


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(PoolerOptions)


def as_object(given: object) -> object:
    """A dataclass that was given as `pooler_config`, as the object it stands for."""
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {key: value for key, value in dataclasses.asdict(given).items() if value is not None}
    return given
