"""The bodies of /score and /rerank: texts in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.server.protocol.body import RequestBody
from cadence.entrypoints.server.protocol.common import INT64, Variables
from cadence.entrypoints.server.protocol.pooling.fields import (
    HINTS,
    MAX_INPUTS,
    ChosenId,
    KeptTokens,
    ModelName,
    Priority,
    Salt,
    Side,
)
from cadence.entrypoints.server.protocol.unsupported import HintField, RefusedField, Unsupported

_TEXT = {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"text": {"type": "string"}}}]}
_TEXTS: dict[str, Any] = {"anyOf": [*_TEXT["anyOf"], {"type": "array", "items": _TEXT, "minItems": 1}]}
_ONE_TEXT: dict[str, Any] = dict(_TEXT)
_CUT = "documents are cut with truncate_prompt_tokens"

# What vLLM calls the two sides, each pair of names once.
SIDES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))


class ScoringBody(RequestBody):
    model: ModelName | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    truncation_side: Side | None = None
    use_activation: bool | None = None
    activation: bool | None = None  # an older name of it
    chat_template: str | None = Field(default=None, max_length=262_144)  # by which a model that reads both gets a pair
    chat_template_kwargs: Variables | None = None
    priority: Priority | None = None
    request_id: ChosenId | None = None
    cache_salt: Salt | None = None

    def params(self) -> PoolingParams:
        return PoolingParams(task="score", use_activation=self.use_activation, activation=self.activation)


class ScoreBody(ScoringBody):
    """One text for each of the others, or as many as there are others."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = HINTS

    text_1: Any = Field(default=None, json_schema_extra=_TEXTS)
    text_2: Any = Field(default=None, json_schema_extra=_TEXTS)
    queries: Any = Field(default=None, json_schema_extra=_TEXTS)
    documents: Any = Field(default=None, json_schema_extra=_TEXTS)
    items: Any = Field(default=None, json_schema_extra=_TEXTS)
    data_1: Any = Field(default=None, json_schema_extra=_TEXTS)
    data_2: Any = Field(default=None, json_schema_extra=_TEXTS)

    def pairs(self) -> TextPairs:
        first, second = self._names()
        pairs = TextPairs(
            tuple(texts_of(getattr(self, first), first)), tuple(texts_of(getattr(self, second), second)), first, second
        )
        counts = (len(pairs.first), len(pairs.second))
        if counts[0] not in (1, counts[1]):
            message = f"{first} has {counts[0]} texts and {second} {counts[1]}: give one text, or as many on both sides"
            raise InvalidRequestError(message, first)
        return pairs

    def _names(self) -> tuple[str, str]:
        given = {name for names in SIDES for name in names if getattr(self, name) is not None}
        for names in SIDES:
            if given == set(names):
                return names
        if not given:
            raise InvalidRequestError("text_1 and text_2 are missing: give two texts or lists of texts", "text_1")
        known = ", ".join(" and ".join(names) for names in SIDES)
        raise InvalidRequestError(f"give two sides ({known}), not {' and '.join(sorted(given))}", sorted(given)[0])


class RerankBody(ScoringBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = {
        **HINTS,
        "rank_fields": RefusedField((["text"],), "documents are ranked by their text"),
        "max_tokens_per_doc": RefusedField((4096,), _CUT),
        "max_chunks_per_doc": HintField((), "a document is read in one piece"),
    }

    query: Any = Field(json_schema_extra=_ONE_TEXT)
    documents: Any = Field(json_schema_extra={"type": "array", "items": _TEXT, "minItems": 1})
    top_n: int | None = Field(default=None, ge=0, lt=INT64)  # the best of them; None and 0 = all
    return_documents: bool | None = None  # with their texts; None = yes

    def pairs(self) -> TextPairs:
        if not isinstance(self.documents, list):
            raise InvalidRequestError("documents must be a list of texts", "documents")
        query = text_of(self.query, "query")
        return TextPairs((query,), tuple(texts_of(self.documents, "documents")), "query", "documents")

    @property
    def shown(self) -> int:
        return self.top_n or MAX_INPUTS


class TextPairs:
    """Two sides: one text for all of the others, or one for each. A name is that of the field with a side's texts."""

    def __init__(self, first: Sequence[str], second: Sequence[str], first_name: str, second_name: str) -> None:
        self.first = first
        self.second = second
        self._names = first_name, second_name

    @property
    def count(self) -> int:
        return len(self.second)

    def pair(self, number: int) -> tuple[str, str]:
        return self.first[number if len(self.first) > 1 else 0], self.second[number]

    def where(self, side: int, number: int) -> str:
        """The name of one text of the first (0) or the second side (1)."""
        texts = (self.first, self.second)[side]
        return f"{self._names[side]}[{number}]" if len(texts) > 1 else self._names[side]


def texts_of(given: object, field: str) -> list[str]:
    if not isinstance(given, list):
        return [text_of(given, field)]
    if not given:
        raise InvalidRequestError(f"{field} is empty: it must hold at least one text", field)
    if len(given) > MAX_INPUTS:
        raise InvalidRequestError(f"{field} has {len(given)} entries; at most {MAX_INPUTS} are allowed", field)
    return [text_of(one, f"{field}[{number}]") for number, one in enumerate(given)]


def text_of(given: object, where: str) -> str:
    """A text, or an object with it."""
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise InvalidRequestError(f'{where} must be a text, or {{"text": …}}: this version reads text only', where)
    if not text:
        raise InvalidRequestError(f"{where} is empty: a text has at least one character", where)
    return text
