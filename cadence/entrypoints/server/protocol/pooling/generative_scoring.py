"""The body of /generative_scoring: how likely tokens are to come next."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.protocol.body import RequestBody
from cadence.entrypoints.server.protocol.common import LogprobIds
from cadence.entrypoints.server.protocol.pooling.fields import MAX_INPUTS, ChosenId, ModelName, Priority, Salt
from cadence.entrypoints.server.protocol.texts_or_ids import TEXTS_OR_IDS, is_ids, texts_or_ids

Labels = Annotated[LogprobIds, Field(min_length=1)]


class GenerativeScoringBody(RequestBody):
    """A prompt is the query and one of the items. Its score is the probability of the first label."""

    model: ModelName | None = None
    query: Any = Field(json_schema_extra={"anyOf": [TEXTS_OR_IDS["anyOf"][0], TEXTS_OR_IDS["anyOf"][2]]})
    items: Any = Field(json_schema_extra={"anyOf": [TEXTS_OR_IDS["anyOf"][1], TEXTS_OR_IDS["anyOf"][3]]})
    label_token_ids: Labels
    apply_softmax: bool = True  # among the labels; else among all tokens
    item_first: bool = False
    add_special_tokens: bool = True
    priority: Priority | None = None
    request_id: ChosenId | None = None
    cache_salt: Salt | None = None

    def check(self, vocab_size: int) -> None:
        if not isinstance(self.query, str) and not is_ids(self.query):
            raise InvalidRequestError("query must be a text or a list of token ids", "query")
        if not isinstance(self.items, list) or (self.items and type(self.items[0]) is int):
            raise InvalidRequestError("items must be a list of texts or of lists of token ids", "items")
        for number, token in enumerate(self.label_token_ids):
            if not 0 <= token < vocab_size:
                where = f"label_token_ids[{number}]"
                raise InvalidRequestError(f"{where} must be a token id below the vocabulary size {vocab_size}", where)

    def all_items(self) -> list[str | list[int]]:
        return texts_or_ids(self.items, "items", MAX_INPUTS)
