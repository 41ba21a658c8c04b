"""What the engine counts. Written by the front as tokens pass by; read by `get_metrics`."""

from __future__ import annotations

from cadence.core.engine_state import EngineState
from cadence.core.request import FinishReason
from cadence.core.update import RequestUpdate
from cadence.engine.metrics.metric import Counter, Gauge, Histogram, Metric
from cadence.engine.request_text import RequestText
from cadence.scheduler.stats import SchedulerStats

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class MetricsRecorder:
    def __init__(self, model_name: str) -> None:
        self._labels = {"model_name": model_name, "engine": "0"}
        self._prompt_tokens = self._counter("prompt_tokens")
        self._cached_tokens = self._counter("prompt_tokens_cached")
        self._generation_tokens = self._counter("generation_tokens")
        self._success = {
            reason: Counter("vllm:request_success", {**self._labels, "finished_reason": reason.value})
            for reason in FinishReason
        }
        self._first_token = self._histogram("time_to_first_token_seconds", _SECONDS)
        self._per_token = self._histogram("request_time_per_output_token_seconds", _SECONDS)
        self._latency = self._histogram("e2e_request_latency_seconds", _SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", _SECONDS)
        self._prompt_lengths = self._histogram("request_prompt_tokens", _TOKENS)
        self._output_lengths = self._histogram("request_generation_tokens", _TOKENS)

    def tokens(self, text: RequestText, update: RequestUpdate) -> None:
        self._generation_tokens.value += len(update.new_token_ids)
        if update.new_token_ids and len(text.token_ids) == len(update.new_token_ids):
            self._first_token.observe(text.metrics.first_token_time - text.metrics.arrival_time)

    def finished(self, text: RequestText) -> None:
        times, count = text.metrics, len(text.token_ids)
        if text.finish_reason is not None:
            self._success[text.finish_reason].value += 1
        self._prompt_tokens.value += len(text.prompt_token_ids)
        self._cached_tokens.value += text.num_cached_tokens
        self._prompt_lengths.observe(len(text.prompt_token_ids))
        self._output_lengths.observe(count)
        self._latency.observe(times.finished_time - times.arrival_time)
        if times.first_scheduled_time:
            self._queue.observe(times.first_scheduled_time - times.arrival_time)
        if count > 1:
            self._per_token.observe((times.last_token_time - times.first_token_time) / (count - 1))

    def snapshot(self, stats: SchedulerStats) -> list[Metric]:
        return [
            self._gauge("num_requests_running", stats.num_running),
            self._gauge("num_requests_waiting", stats.num_waiting),
            self._gauge("kv_cache_usage_perc", stats.kv_usage),
            Counter("vllm:num_preemptions", self._labels, stats.num_preemptions),
            Counter("vllm:prefix_cache_queries", self._labels, stats.prefix_queries),
            Counter("vllm:prefix_cache_hits", self._labels, stats.prefix_hits),
            self._prompt_tokens,
            self._cached_tokens,
            self._generation_tokens,
            *self._success.values(),
            self._first_token,
            self._per_token,
            self._latency,
            self._queue,
            self._prompt_lengths,
            self._output_lengths,
        ]

    def restarts(self, num_restarts: int, num_quarantined: int, num_failed: int) -> list[Metric]:
        """Of an engine in a process of its own; vLLM has no names for these."""
        return [
            Counter("cadence:engine_restarts", self._labels, num_restarts),
            Counter("cadence:requests_quarantined", self._labels, num_quarantined),
            Counter("cadence:requests_failed_by_quarantine", self._labels, num_failed),
        ]

    def _counter(self, name: str) -> Counter:
        return Counter(f"vllm:{name}", self._labels)

    def _gauge(self, name: str, value: float) -> Gauge:
        return Gauge(f"vllm:{name}", self._labels, value)

    def _histogram(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", self._labels, bounds)


def stats_of(state: EngineState) -> SchedulerStats:
    """The scheduler's numbers, out of a picture of the engine in another process."""
    return SchedulerStats(
        num_running=len(state.running),
        num_waiting=len(state.waiting),
        kv_usage=state.kv_usage,
        prefix_queries=state.prefix_queries,
        prefix_hits=state.prefix_hits,
        num_preemptions=state.num_preemptions,
    )
