"""What /v1/completions/render and /v1/chat/completions/render read and answer: a request as token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.body import Body, validate_body
from cadence.entrypoints.server.protocol.common import GenerationBody
from cadence.entrypoints.server.protocol.generate import TokenSampling
from cadence.entrypoints.server.protocol.json_text import decode_json

OFFSETS = "return_token_offsets"
_PARAMETERS = [
    field.name
    for field in dataclasses.fields(SamplingParams)
    if field.name in TokenSampling.model_fields and field.name != "best_of"
]


def parse_rendered(kind: type[Body], raw: bytes, ignored: Ignored) -> tuple[Body, bool]:
    """The request, and whether `token_offsets` are wanted."""
    content = decode_json(raw)
    offsets = content.pop(OFFSETS, None) if isinstance(content, dict) else None
    if offsets is not None and not isinstance(offsets, bool):
        raise InvalidRequestError(f"{OFFSETS} must be true or false", OFFSETS)
    body = validate_body(kind, content, ignored)
    if getattr(body, "use_beam_search", False):
        raise InvalidRequestError("use_beam_search is not among the parameters of token ids", "use_beam_search")
    return body, bool(offsets)


def rendered(
    body: GenerationBody, params: SamplingParams, model: str, token_ids: Sequence[int], max_model_len: int
) -> dict[str, Any]:
    """The body of /inference/v1/generate that stands for `body`. The caller adds `request_id`."""
    return {
        "token_ids": list(token_ids),
        "assistant_tokens_mask": None,
        "token_offsets": None,
        "features": None,
        "sampling_params": _shown(params) | {"max_tokens": params.max_tokens or max_model_len - len(token_ids)},
        "model": model,
        "stream": bool(body.stream),
        "stream_options": None if body.stream_options is None else body.stream_options.model_dump(exclude_none=True),
        "cache_salt": body.cache_salt,
        "priority": body.priority or 0,
        "kv_transfer_params": None,
    }


def _shown(params: SamplingParams) -> dict[str, Any]:
    """All of them, not only those the client sent: who generates may have other defaults."""
    told = {name: value for name in _PARAMETERS if (value := getattr(params, name)) is not None}
    if params.repetition_detection is not None:
        told["repetition_detection"] = dataclasses.asdict(params.repetition_detection)
    return told
