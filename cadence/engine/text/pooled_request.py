"""One request for values in place of tokens, as the front keeps it: its first news is its end."""

from __future__ import annotations

import time

from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.step import FloatArray
from cadence.core.contract.update import RequestUpdate
from cadence.core.failure import Failure, FailureCode
from cadence.core.outputs import CompletionOutput, RequestMetrics, RequestOutput


class PooledRequest:
    """A `Completion` without tokens: a small part of what a `RequestText` and its group keep."""

    __slots__ = (
        "_lora_request",
        "_prompt",
        "_warnings",
        "engine",
        "finish_reason",
        "max_tokens",
        "metrics",
        "num_cached_tokens",
        "pooled_np",
        "prompt_token_ids",
        "request_id",
        "tenant",
    )

    token_ids: tuple[int, ...] = ()
    token_gap = 0.0

    def __init__(
        self, request: EngineRequest, prompt: str | None, warnings: list[str], lora_request: object = None
    ) -> None:
        """lora_request: what outputs say of it, as it was given"""
        self.request_id, self.tenant = request.request_id, request.tenant
        self.prompt_token_ids = request.prompt_token_ids
        self.max_tokens = request.params.max_tokens
        self.metrics = RequestMetrics(arrival_time=request.arrival_time)
        self.finish_reason: FinishReason | None = None
        self.num_cached_tokens = 0
        self.pooled_np: FloatArray | None = None
        self.engine = 0  # which of several gave the values
        self._prompt = prompt
        self._warnings = warnings
        self._lora_request = lora_request

    @property
    def is_pooled(self) -> bool:
        return self.pooled_np is not None

    def end(self, update: RequestUpdate) -> RequestOutput:
        """By its last update."""
        times = self.metrics
        times.first_scheduled_time = update.first_scheduled_time
        times.num_preemptions = update.num_preemptions
        times.finished_time = time.monotonic()
        self.num_cached_tokens = update.num_cached_tokens
        self.finish_reason, self.pooled_np = update.finish_reason, update.pooled_np
        if self.is_pooled:
            self.engine = update.engine
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=None,
            outputs=[self._completion(update)],
            finished=True,
            metrics=times,
            lora_request=self._lora_request,
            num_cached_tokens=self.num_cached_tokens,
            warnings=self._warnings,
            pooled_np=self.pooled_np,
        )

    def _completion(self, update: RequestUpdate) -> CompletionOutput:
        reason: int | str | Failure | None = update.stop_reason
        failure: FailureCode | None = None
        if isinstance(reason, Failure):
            failure, reason = reason.code, reason.message
        return CompletionOutput(
            index=0,
            text="",
            token_ids=[],
            finish_reason=None if update.finish_reason is None else update.finish_reason.value,
            stop_reason=reason,
            lora_request=self._lora_request,
            failure=failure,
        )
