"""n completions of one prompt: n requests below, one above."""

from __future__ import annotations

import functools
from dataclasses import replace

from cadence.core.contract.request import EngineRequest
from cadence.core.draft_stats import NO_DRAFTS, DraftStats
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.text.request_text import RequestText

_MASK64 = (1 << 64) - 1


def fan_out(request: EngineRequest) -> list[EngineRequest]:
    """One request per completion, each with a seed of its own. Prefix caching has the prompt computed once."""
    count = request.params.n
    if count == 1:
        return [request]
    children = []
    for index in range(count):
        params = request.params.clone()
        params.n = 1
        seed = (request.seed + index) & _MASK64
        children.append(replace(request, request_id=f"{index}_{request.request_id}", params=params, seed=seed))
    return children


class CompletionGroup:
    """Gathers the completions of one user request into `RequestOutput`s."""

    def __init__(
        self, request_id: str, count: int, kind: RequestOutputKind, warnings: list[str], lora_request: object = None
    ) -> None:
        self.request_id = request_id
        self.count = count
        self.longest = 0  # tokens of the longest completion that has ended
        self._num_ended = 0
        self._kind = kind
        self._warnings = warnings
        self._lora_request = lora_request
        self._finished: dict[int, CompletionOutput] = {}
        self._speculation: dict[int, DraftStats] = {}  # of each completion, as last told

    def is_last(self, text: RequestText) -> bool:
        """To be asked once of each completion, at its end."""
        self.longest = max(self.longest, len(text.token_ids))
        self._num_ended += 1
        return self._num_ended == self.count

    def output(self, text: RequestText) -> RequestOutput | None:
        """The output to show now that one completion changed; None while only the final one is wanted."""
        completion = text.completion()
        completion.lora_request = self._lora_request
        if completion.speculation is not NO_DRAFTS:
            self._speculation[text.index] = completion.speculation
        if text.finish_reason is not None:
            self._finished[text.index] = completion
        finished = len(self._finished) == self.count
        if self._kind is RequestOutputKind.FINAL_ONLY:
            if not finished:
                return None
            return self._request_output(text, [self._finished[i] for i in range(self.count)], True)
        return self._request_output(text, [completion], finished)

    def _all_drafts(self) -> DraftStats:
        return functools.reduce(DraftStats.plus, self._speculation.values(), NO_DRAFTS)

    def _request_output(self, text: RequestText, outputs: list[CompletionOutput], finished: bool) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=text.prompt,
            prompt_token_ids=text.prompt_token_ids,
            prompt_logprobs=text.prompt_logprobs,
            outputs=outputs,
            finished=finished,
            metrics=text.metrics,
            lora_request=self._lora_request,
            encoder_prompt_token_ids=text.encoder_token_ids,
            num_cached_tokens=text.num_cached_tokens,
            speculation=self._all_drafts() if self._speculation else NO_DRAFTS,
            warnings=self._warnings,
            pooled_np=text.pooled_np,
        )
