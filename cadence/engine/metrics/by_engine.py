"""What several engines count, told apart by the label `engine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cadence.core.contract.engine_state import EngineStats
from cadence.core.contract.update import AnyUpdate
from cadence.engine.metrics.completion import Completion
from cadence.engine.metrics.metric import Metric
from cadence.engine.metrics.recorder import MetricsRecorder


def _forget(tenant: str, tokens: int) -> None: ...


class MetricsByEngine:
    """A recorder for each engine, one or several."""

    written: Callable[[str, int], None] = staticmethod(_forget)  # hears whose completion ended, and its tokens

    def __init__(
        self,
        model_name: str,
        cache: Mapping[str, str] | None = None,
        most_drafts: int = 0,
        max_loras: int = 0,
        num_engines: int = 1,
    ) -> None:
        """As `MetricsRecorder` has them."""
        self._engines = [
            MetricsRecorder(model_name, cache, most_drafts=most_drafts, max_loras=max_loras, engine=number)
            for number in range(num_engines)
        ]

    def tokens(self, text: Completion, update: AnyUpdate) -> None:
        self._engines[update.engine].tokens(text, update)

    def finished(self, text: Completion) -> None:
        self._engines[text.engine].finished(text)
        self.written(text.tenant, len(text.token_ids))

    def pooled_finished(self, requests: Sequence[Completion]) -> None:
        """Of requests for values in place of tokens, each a user's."""
        for number in {each.engine for each in requests}:
            self._engines[number].pooled_finished([each for each in requests if each.engine == number])

    def group_finished(self, engine: int, completions: int, longest: int) -> None:
        """engine: of the completion that ended last"""
        self._engines[engine].group_finished(completions, longest)

    def snapshot(self, stats: Sequence[EngineStats]) -> list[Metric]:
        """Of each engine."""
        return [metric for one, own in zip(self._engines, stats, strict=True) for metric in one.snapshot(own)]

    def restarts(self, counts: Sequence[tuple[int, int, int]]) -> list[Metric]:
        """Of each engine: restarts, requests quarantined, requests that failed by it."""
        return [metric for one, own in zip(self._engines, counts, strict=True) for metric in one.restarts(*own)]
