"""The body and the answers of /v1/embed and /v2/embed, as Cohere has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.server.http.stream import encode_json
from cadence.entrypoints.server.protocol.body import RequestBody
from cadence.entrypoints.server.protocol.common import INT64
from cadence.entrypoints.server.protocol.pooling.answers import FloatArray, encoded
from cadence.entrypoints.server.protocol.pooling.fields import MAX_INPUTS, ModelName, PooledBody, Priority
from cadence.entrypoints.server.protocol.pooling.scores import texts_of
from cadence.entrypoints.server.protocol.unsupported import RefusedField, Unsupported

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]

# What models of sentence-transformers call the prompt of each type, the usual name first.
_PROMPT_NAMES: dict[str, tuple[str, ...]] = {
    "search_document": ("search_document", "document", "passage", "retrieval.passage"),
    "search_query": ("search_query", "query", "retrieval.query"),
    "classification": ("classification",),
    "clustering": ("clustering", "separation"),
}
_SIDES = {"START": "left", "END": "right"}
_BYTE = 128  # from a signed byte to an unsigned one
_LEAST = np.float32(1e-30)


class CohereTexts(PooledBody):
    """The texts of a request in the words of the other endpoints."""

    def where(self, number: int) -> str:
        return f"texts[{number}]"


class CohereEmbedBody(RequestBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = {
        "images": RefusedField(([],), "this version reads text only"),
    }

    model: ModelName | None = None
    texts: Any = Field(default=None, json_schema_extra={"type": "array", "items": {"type": "string"}, "minItems": 1})
    inputs: Any = Field(default=None, json_schema_extra={"type": "array", "items": {"type": "object"}, "minItems": 1})
    input_type: InputType | None = None  # which of the model's prompts goes before the texts
    embedding_types: list[EmbeddingType] | None = Field(default=None, max_length=16)
    output_dimension: int | None = Field(default=None, ge=1, lt=INT64)
    max_tokens: int | None = Field(default=None, ge=1, lt=INT64)  # of a longer text so many are kept
    truncate: Literal["NONE", "START", "END"] = "END"  # where a text that is too long is cut
    priority: Priority | None = None

    @property
    def types(self) -> list[EmbeddingType]:
        return list(dict.fromkeys(self.embedding_types or ["float"]))

    def all_texts(self) -> list[str]:
        if (self.texts is None) == (self.inputs is None):
            raise InvalidRequestError("give either texts or inputs", "texts")
        if self.input_type == "image":
            raise InvalidRequestError("input_type is image: this version reads text only", "input_type")
        if self.inputs is None:
            if not isinstance(self.texts, list):
                raise InvalidRequestError("texts must be a list of texts", "texts")
            return texts_of(self.texts, "texts")
        if not isinstance(self.inputs, list) or not 0 < len(self.inputs) <= MAX_INPUTS:
            raise InvalidRequestError(f"inputs must be a list of 1 to {MAX_INPUTS} objects", "inputs")
        return [_text_of_parts(one, f"inputs[{number}]") for number, one in enumerate(self.inputs)]

    def as_pooled(self, prompts: Sequence[str], max_model_len: int) -> CohereTexts:
        """prompts: names of the model's"""
        kept = -1 if self.max_tokens is None else min(self.max_tokens, max_model_len)
        cuts = self.truncate != "NONE"
        return CohereTexts(
            model=self.model,
            input=self.all_texts(),
            prompt_name=self.prompt_name(prompts),
            truncate_prompt_tokens=kept if cuts else None,
            truncation_side=_SIDES[self.truncate] if cuts else None,
            priority=self.priority,
        )

    def params(self) -> PoolingParams:
        return PoolingParams(task="embed", dimensions=self.output_dimension)

    def prompt_name(self, known: Sequence[str]) -> str | None:
        """None: the model has no prompt for this type of texts."""
        names = _PROMPT_NAMES.get(self.input_type or "", ())
        return next((name for name in names if name in known), None)


def _text_of_parts(given: object, where: str) -> str:
    """{"content": [{"type": "text", "text": …}, …]}: the texts of one input, a line each."""
    parts = given.get("content") if isinstance(given, dict) else None
    if not isinstance(parts, list) or not parts:
        raise InvalidRequestError(f"{where} must have a content, a list of at least one part", where)
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(f"{where}: parts must be of type text: this version reads text only", where)
    joined = "\n".join(str(text) for text in texts)
    if not joined:
        raise InvalidRequestError(f"{where} is empty: a text has at least one character", where)
    return joined


def by_type(values_np: FloatArray, types: Sequence[EmbeddingType]) -> dict[str, msgspec.Raw]:
    """One embedding [entries] in each of these types, as JSON."""
    return {kind: _ENCODERS[kind](values_np) for kind in types}


def signed_bytes(values_np: FloatArray) -> np.ndarray:
    """[entries] -> [entries] int8: the largest entry becomes 127 or -127, and others in proportion, so that angles
    between vectors stay what they are but for rounding."""
    largest = np.maximum(np.abs(values_np).max(), _LEAST)
    return np.rint(values_np / largest * 127).astype(np.int8)


def packed_signs(values_np: FloatArray) -> np.ndarray:
    """[entries] -> [entries / 8, rounded up] uint8: a bit each, 1 above 0, the first one highest"""
    return np.packbits(values_np > 0)


def _json(values_np: np.ndarray) -> msgspec.Raw:
    return msgspec.Raw(encode_json(values_np.tolist()))


_ENCODERS: dict[str, Callable[[FloatArray], msgspec.Raw]] = {
    "float": lambda values_np: encoded(values_np, "float"),
    "base64": lambda values_np: encoded(values_np, "base64"),
    "int8": lambda values_np: _json(signed_bytes(values_np)),
    "uint8": lambda values_np: _json(signed_bytes(values_np).astype(np.int16) + _BYTE),
    "ubinary": lambda values_np: _json(packed_signs(values_np)),
    "binary": lambda values_np: _json(packed_signs(values_np).astype(np.int16) - _BYTE),
}
