"""Options of a request that have no effect here: named in the output's `warnings`, and once in the log.

Only hints end up here. What would change the answer and cannot be honoured is refused instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import SamplingParams

logger = logging.getLogger("cadence.engine")

# Keywords of vLLM's calls, beside those of this engine's -> why they change nothing.
_HINTS = {
    "arrival_time": "requests arrive when they are given to the engine",
    "trace_headers": "requests are not traced",
    "session_id": "requests are not routed by session",
    "prompt_text": "the text of a prompt is what its tokens decode to, or its 'prompt'",
    "chat_template_content_format": "how a template reads content is seen from the template",
    "reasoning_ended": "only the server tells reasoning from the answer",
    "reasoning_parser_kwargs": "only the server tells reasoning from the answer",
}
# The same for the calls that make an engine.
_START_HINTS = {
    "usage_context": "no usage is reported to anyone",
    "stat_loggers": "statistics are read with get_metrics() and at /metrics",
    "start_engine_loop": "the engine runs from the start",
    "enable_multiprocessing": "LLMEngine runs in this process, AsyncLLMEngine in one of its own",
    "disable_log_stats": "statistics are not logged",
    "disable_log_requests": "requests are not logged",
    "enable_log_requests": "requests are not logged; the server has --enable-log-requests",
}
_REFUSED = {
    "mm_processor_kwargs": "give it in the prompt, beside multi_modal_data, or to chat()",
    "prompt_adapter_request": "prompt adapters are not in this version",
    "guided_options_request": "this engine does not constrain its output by a grammar",
    "tokenization_kwargs": "tokenise the prompt yourself and give prompt_token_ids",
}


def check_keywords(owner: str, keywords: Mapping[str, Any]) -> list[str]:
    """Keywords beyond those that calls of `owner` have -> warnings about hints among them. None asks for nothing."""
    warnings = []
    for name, value in keywords.items():
        if name in _REFUSED and value:
            raise InvalidRequestError(f"{name} cannot be used: {_REFUSED[name]}", name)
        if name in _HINTS and value is not None:
            warnings.append(f"{name} has no effect: {_HINTS[name]}")
        elif name not in _HINTS and name not in _REFUSED:
            raise InvalidRequestError(f"{owner} has no option {name!r}", name)
    return warnings


def name_start_keywords(owner: str, keywords: Mapping[str, Any]) -> None:
    """Logs the hints among the keywords of a call that makes an engine; an unknown one is an error. None asks for
    nothing."""
    for name, value in keywords.items():
        if name not in _START_HINTS:
            raise InvalidRequestError(f"{owner} has no option {name!r}", name)
        if value is not None:
            logger.warning("%s has no effect: %s", name, _START_HINTS[name])


class UnusedOptions:
    """Finds the options of requests that this engine, as it is configured, does not read."""

    def __init__(self, policy: str, custom_processors: bool, most_drafts: int = 0) -> None:
        self._policy = policy
        self._most_drafts = most_drafts  # of a row in a forward; 0 = the engine does not speculate
        self._custom = custom_processors  # processors of the whole engine, which may read anything
        self._logged: set[str] = set()

    def warnings(self, params: SamplingParams, priority: int, hints: list[str]) -> list[str]:
        """Sentences that begin with the name of an option."""
        found = list(hints)
        if priority and self._policy != "priority":
            found.append(f"priority has no effect: scheduling_policy is {self._policy}")
        if params.extra_args and not self._custom and not params.logits_processors:
            found += [f"extra_args.{name} has no effect: nothing reads it" for name in params.extra_args]
        if (params.speculative or {}).get("num_tokens", 0) > self._most_drafts:
            found.append(
                f"speculative.num_tokens has no effect beyond {self._most_drafts}, the engine's number of drafts"
            )
        for sentence in found:
            self._log_once(sentence)
        return found

    def _log_once(self, sentence: str) -> None:
        name = sentence.partition(" ")[0]
        if name not in self._logged and len(self._logged) < 1000:  # names are untrusted
            self._logged.add(name)
            logger.warning("%s", sentence)
