"""The body of /inference/v1/generate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.body import RequestBody, validate_body
from cadence.entrypoints.server.protocol.common import (
    INT64,
    MAX_TOKEN_LIST,
    NAME_PATTERN,
    GenerationBody,
    LogprobIds,
    StreamOptions,
    Variables,
    at_most,
)
from cadence.entrypoints.server.protocol.sampling import EndpointFields, sampling_params
from cadence.entrypoints.server.protocol.unsupported import HintField, RefusedField, Unsupported

Prompt = Annotated[list[int], Field(min_length=1, max_length=MAX_TOKEN_LIST, fail_fast=True), at_most(MAX_TOKEN_LIST)]

_OUTSIDE = "it belongs beside sampling_params"
_TEXT_ONLY = "this version reads text only"


class TokenSampling(GenerationBody):
    """What `sampling_params` holds: the names of `SamplingParams`."""

    unsupported: ClassVar[Mapping[str, Unsupported]] = {
        **{name: HintField((), _OUTSIDE) for name in ("model", "stream", "stream_options", "priority", "cache_salt")},
        **{name: HintField((), _OUTSIDE) for name in ("request_id", "return_token_ids", "return_tokens_as_token_ids")},
        "output_kind": HintField((), "stream says how the answer comes"),
        "detokenize": HintField((), "this endpoint gives no text"),
    }

    logprobs: int | None = Field(default=None, ge=-1, lt=INT64)
    logprob_token_ids: LogprobIds | None = None


class GenerateBody(RequestBody):
    unsupported: ClassVar[Mapping[str, Unsupported]] = {
        "features": RefusedField((), _TEXT_ONLY),
        "content_parts": RefusedField((), _TEXT_ONLY),
        "assistant_tokens_mask": HintField((), "it is not used for generation"),
        "token_offsets": HintField((), "it is not used for generation"),
    }

    token_ids: Prompt
    sampling_params: Variables
    model: str | None = Field(default=None, max_length=1024)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    request_id: str | None = Field(default=None, pattern=NAME_PATTERN)

    def params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        try:
            inner = validate_body(TokenSampling, self.sampling_params, _Inside(self.ignored))
            inner.stream = self.stream
            chosen = EndpointFields(inner.max_tokens, inner.logprobs, logprob_token_ids=inner.logprob_token_ids)
            return sampling_params(inner, defaults, chosen)
        except InvalidRequestError as error:
            where = f"sampling_params.{error.field}" if error.field else "sampling_params"
            raise InvalidRequestError(f"sampling_params: {error}", where) from None


class _Inside(Ignored):
    """Names what has no effect as a part of `sampling_params`."""

    def __init__(self, outer: Ignored) -> None:
        super().__init__()
        self._outer = outer

    def add(self, name: str, why: str = "unknown here") -> None:
        self.count += 1
        self._outer.add(f"sampling_params.{name}", why)
