"""Token counts as clients know them."""

from __future__ import annotations

from typing import Any

from cadence.entrypoints.server.chat.events import Usage

# In whole answers, as in vLLM: there where nothing is told.
NO_DETAILS = {"prompt_tokens_details": None, "completion_tokens_details": None}


def usage_object(usage: Usage, details: bool = False, reasons: bool = False) -> dict[str, Any]:
    """`details`: say how many prompt tokens came from the cache; `reasons`: how many tokens were thoughts."""
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if details:
        counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if reasons or usage.reasoning_tokens:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return counts
