"""Token counts as clients know them."""

from __future__ import annotations

from typing import Any

from cadence.entrypoints.openai.events import Usage


def usage_object(usage: Usage, details: bool) -> dict[str, Any]:
    """`details`: say how many prompt tokens came from the cache."""
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if details:
        counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return counts
