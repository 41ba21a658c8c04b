"""What of a response its client asked to see, and what a response repeats of its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadence.core.contract.response_messages import ResponseOrigin
from cadence.core.outputs import PositionLogprobs
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server.chat.events import Usage
from cadence.entrypoints.server.protocol.logprobs import TokenNames, chat_logprobs
from cadence.entrypoints.server.protocol.responses.response_tools import ResponseTools
from cadence.entrypoints.server.protocol.responses.responses import ENCRYPTED_REASONING, ResponsesBody, TextConfig


@dataclass(frozen=True, slots=True)
class ResponseView:
    id: str
    fixed: Mapping[str, Any]  # fields that are the same from the first event to the last
    tools: ResponseTools
    names: TokenNames
    top_logprobs: int | None  # None = no logprobs
    sealed: bool  # reasoning items also hold what goes by the name of encrypted content
    parallel_calls: bool
    tells_thoughts: bool

    def logprobs(self, ids: Sequence[int], positions: Sequence[PositionLogprobs] | None) -> list[dict[str, Any]]:
        if self.top_logprobs is None or positions is None:
            return []
        content: list[dict[str, Any]] = chat_logprobs(self.names, ids, positions, self.top_logprobs)["content"]
        return content


def response_view(
    origin: ResponseOrigin,
    model: str,
    body: ResponsesBody,
    params: SamplingParams,
    tools: ResponseTools,
    names: TokenNames,
) -> ResponseView:
    return ResponseView(
        id=origin.id,
        fixed={"created_at": origin.created_at, "model": model, **_repeated(body, params)},
        tools=tools,
        names=names,
        top_logprobs=body.num_logprobs(),
        sealed=ENCRYPTED_REASONING in (body.include or ()),
        parallel_calls=body.parallel_tool_calls is not False,
        tells_thoughts=body.include_reasoning is not False,
    )


def usage_of_response(usage: Usage) -> dict[str, Any]:
    """The lists are for servers that run tools themselves, and so take several turns."""
    read: dict[str, Any] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    written: dict[str, Any] = {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0, **read},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens, "tool_output_tokens": 0, **written},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _repeated(body: ResponsesBody, params: SamplingParams) -> dict[str, Any]:
    reasoning = body.reasoning
    return {
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": _text(body),
        "tool_choice": body.tool_choice or ("auto" if body.tools else "none"),
        "tools": [_shown_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _shown_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"strict": None, "parameters": None} if tool.get("type") == "function" else {}
    return {**shown, "description": None, **tool}


def _text(body: ResponsesBody) -> dict[str, Any]:
    """What was asked of the text, told back."""
    asked = body.text or TextConfig()
    return {"format": asked.format or {"type": "text"}, "verbosity": asked.verbosity}
