"""What the engine counts. Written by the front as tokens pass by; read by `get_metrics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cadence.core.adapter import AdapterStats
from cadence.core.contract.engine_state import FORWARD_TOKENS, EngineStats
from cadence.core.contract.request import FinishReason
from cadence.core.contract.update import AnyUpdate
from cadence.core.draft_stats import DraftStats
from cadence.core.model.state_spec import StateStats
from cadence.engine.metrics.completion import Completion
from cadence.engine.metrics.metric import Counter, Gauge, Histogram, Metric

_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_COMPLETIONS = (1, 2, 5, 10, 20)
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


class MetricsRecorder:
    def __init__(
        self,
        model_name: str,
        cache: Mapping[str, str] | None = None,
        most_drafts: int = 0,
        max_loras: int = 0,
        engine: int = 0,
    ) -> None:
        """`cache`: the settings of the KV cache, by name. `most_drafts`: of a forward; 0 = no speculation.
        `max_loras`: 0 = requests have no adapters."""
        self._most_drafts = most_drafts
        self._max_loras = max_loras
        self._labels = {"model_name": model_name, "engine": str(engine)}
        self._cache_info = Gauge("vllm:cache_config_info", {**self._labels, **(cache or {})}, 1.0)
        self._prompt_tokens = self._counter("prompt_tokens")
        self._cached_tokens = self._counter("prompt_tokens_cached")
        self._sources = {source: self._counter("prompt_tokens_by_source", source=source) for source in _SOURCES}
        self._generation_tokens = self._counter("generation_tokens")
        self._success = {
            reason: self._counter("request_success", finished_reason=reason.value) for reason in FinishReason
        }
        self._pooling_requests = Counter("cadence:pooling_requests", self._labels)
        self._pooling_tokens = Counter("cadence:pooling_prompt_tokens", self._labels)
        self._first_token = self._histogram("time_to_first_token_seconds", _SECONDS)
        self._between_tokens = self._histogram("inter_token_latency_seconds", _SECONDS)
        self._per_token = self._histogram("request_time_per_output_token_seconds", _SECONDS)
        self._latency = self._histogram("e2e_request_latency_seconds", _SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", _SECONDS)
        self._prefill = self._histogram("request_prefill_time_seconds", _SECONDS)
        self._decode = self._histogram("request_decode_time_seconds", _SECONDS)
        self._inference = self._histogram("request_inference_time_seconds", _SECONDS)
        self._prompt_lengths = self._histogram("request_prompt_tokens", _TOKENS)
        self._computed_lengths = self._histogram("request_prefill_kv_computed_tokens", _TOKENS)
        self._output_lengths = self._histogram("request_generation_tokens", _TOKENS)
        self._longest = self._histogram("request_max_num_generation_tokens", _TOKENS)
        self._completions = self._histogram("request_params_n", _COMPLETIONS)
        self._limits = self._histogram("request_params_max_tokens", _TOKENS)
        self._forwards = self._histogram("iteration_tokens_total", FORWARD_TOKENS)

    def tokens(self, text: Completion, update: AnyUpdate) -> None:
        """Of every update: this is the only work per token here."""
        count = len(update.new_token_ids)
        if not count:
            return
        self._generation_tokens.value += count
        if len(text.token_ids) > count:
            self._between_tokens.observe(text.token_gap / count, count)
        else:
            self._begun(text)

    def finished(self, text: Completion) -> None:
        """Of one completion."""
        times, count = text.metrics, len(text.token_ids)
        if text.finish_reason is not None:
            self._success[text.finish_reason].value += 1
        self._prompt_lengths.observe(len(text.prompt_token_ids))
        self._latency.observe(times.finished_time - times.arrival_time)
        self._output_lengths.observe(count)
        if text.max_tokens is not None:
            self._limits.observe(text.max_tokens)
        if times.first_scheduled_time:
            self._queue.observe(times.first_scheduled_time - times.arrival_time)
        if times.first_scheduled_time and count:
            self._computed_lengths.observe(len(text.prompt_token_ids) - text.num_cached_tokens)
            self._prefill.observe(times.first_token_time - times.first_scheduled_time)
            self._decode.observe(times.last_token_time - times.first_token_time)
            self._inference.observe(times.last_token_time - times.first_scheduled_time)
        if count > 1:
            self._per_token.observe((times.last_token_time - times.first_token_time) / (count - 1))

    def group_finished(self, completions: int, longest: int) -> None:
        """Of a user's request: all of its completions have ended."""
        self._completions.observe(completions)
        self._longest.observe(longest)

    def pooled_finished(self, requests: Sequence[Completion]) -> None:
        """Of requests for values in place of tokens, each a user's."""
        for each in requests:
            if each.finish_reason is not None:
                self._success[each.finish_reason].value += 1
        self._prompt_lengths.observe_each([len(each.prompt_token_ids) for each in requests])
        self._latency.observe_each([each.metrics.finished_time - each.metrics.arrival_time for each in requests])
        self._completions.observe(1, len(requests))
        self._longest.observe(0, len(requests))
        self._pooled([each for each in requests if each.is_pooled])

    def _pooled(self, requests: Sequence[Completion]) -> None:
        """Values are there: the prompts were computed, and nothing comes after them."""
        self._pooling_requests.value += len(requests)
        self._pooling_tokens.value += sum([len(each.prompt_token_ids) for each in requests])
        for each in requests:
            self._count_prompt(each)
        begun = [each.metrics for each in requests if each.metrics.first_scheduled_time]
        self._queue.observe_each([times.first_scheduled_time - times.arrival_time for times in begun])
        self._inference.observe_each([times.finished_time - times.first_scheduled_time for times in begun])

    def snapshot(self, stats: EngineStats) -> list[Metric]:
        self._forwards.set_to(stats.forward_counts, stats.forward_tokens)
        return [
            self._gauge("num_requests_running", stats.num_running),
            self._gauge("num_requests_waiting", stats.num_waiting),
            self._gauge("num_requests_waiting_by_reason", stats.num_waiting, reason="capacity"),
            self._gauge("kv_cache_usage_perc", stats.kv_usage),
            self._cache_info,
            *self._adapters(stats.adapters),
            self._counter("num_preemptions", stats.num_preemptions),
            self._counter("prefix_cache_queries", stats.prefix_queries),
            self._counter("prefix_cache_hits", stats.prefix_hits),
            self._counter("mm_cache_queries", stats.media.queries),
            self._counter("mm_cache_hits", stats.media.hits),
            self._prompt_tokens,
            self._cached_tokens,
            *self._sources.values(),
            self._generation_tokens,
            *self._success.values(),
            self._pooling_requests,
            self._pooling_tokens,
            *self._drafts(stats.drafts),
            *self._states(stats.states),
            *(
                Counter("cadence:rank_busy_seconds", {**self._labels, "rank": str(rank)}, busy)
                for rank, busy in enumerate(stats.busy_seconds)
            ),
            *self._histograms(),
        ]

    def restarts(self, num_restarts: int, num_quarantined: int, num_failed: int) -> list[Metric]:
        """Of an engine in a process of its own; vLLM has no names for these."""
        return [
            Counter("cadence:engine_restarts", self._labels, num_restarts),
            Counter("cadence:requests_quarantined", self._labels, num_quarantined),
            Counter("cadence:requests_failed_by_quarantine", self._labels, num_failed),
        ]

    def _adapters(self, adapters: AdapterStats) -> list[Metric]:
        """The names are labels; the value is the time at which they were right."""
        if not self._max_loras:
            return []
        running, waiting = ",".join(adapters.running), ",".join(adapters.waiting)
        labels = {"max_lora": str(self._max_loras), "running_lora_adapters": running, "waiting_lora_adapters": waiting}
        return [self._gauge("lora_requests_info", adapters.time, **labels)]

    def _drafts(self, drafts: DraftStats) -> list[Metric]:
        if not self._most_drafts:
            return []
        kept = [*drafts.accepted_by_position, *[0] * (self._most_drafts - len(drafts.accepted_by_position))]
        return [
            self._counter("spec_decode_num_drafts", drafts.num_forwards),
            self._counter("spec_decode_num_draft_tokens", drafts.num_drafted),
            self._counter("spec_decode_num_accepted_tokens", drafts.num_accepted),
            *(
                self._counter("spec_decode_num_accepted_tokens_per_pos", count, position=str(position))
                for position, count in enumerate(kept)
            ),
        ]

    def _states(self, states: StateStats) -> list[Metric]:
        """vLLM has no names for these."""
        if not states.rows:
            return []
        return [
            Gauge("cadence:state_rows", self._labels, states.rows),
            Gauge("cadence:state_rows_used", self._labels, states.running),
            Gauge("cadence:state_snapshots", self._labels, states.slots),
            Gauge("cadence:state_snapshots_used", self._labels, states.used),
            Counter("cadence:state_snapshots_saved", self._labels, states.saved),
            Counter("cadence:state_snapshots_restored", self._labels, states.restored),
            Counter("cadence:state_snapshots_evicted", self._labels, states.evicted),
        ]

    def _begun(self, text: Completion) -> None:
        """The first token is there: the prompt was computed."""
        self._first_token.observe(text.metrics.first_token_time - text.metrics.arrival_time)
        self._count_prompt(text)

    def _count_prompt(self, text: Completion) -> None:
        prompt, cached = len(text.prompt_token_ids), text.num_cached_tokens
        self._prompt_tokens.value += prompt
        self._cached_tokens.value += cached
        self._sources["local_compute"].value += prompt - cached
        self._sources["local_cache_hit"].value += cached

    def _histograms(self) -> list[Histogram]:
        return [
            self._first_token, self._between_tokens, self._per_token, self._latency, self._queue, self._prefill,
            self._decode, self._inference, self._prompt_lengths, self._computed_lengths, self._output_lengths,
            self._longest, self._completions, self._limits, self._forwards,
        ]  # fmt: skip

    def _counter(self, name: str, value: int = 0, **labels: str) -> Counter:
        return Counter(f"vllm:{name}", {**self._labels, **labels}, value)

    def _gauge(self, name: str, value: float, **labels: str) -> Gauge:
        return Gauge(f"vllm:{name}", {**self._labels, **labels}, value)

    def _histogram(self, name: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", self._labels, bounds)
