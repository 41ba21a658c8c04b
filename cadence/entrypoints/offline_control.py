"""What is asked of the engine of an `LLM` beside outputs: empty caches, sleep, other weights, adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from cadence.core.lora_request import LoRARequest
from cadence.engine.llm_engine import LLMEngine
from cadence.entrypoints.rpc import bound_method, num_ranks
from cadence.entrypoints.weights_files import Named, NewWeights, WeightsFiles


class OfflineControl:
    llm_engine: LLMEngine

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """As `LLMEngine.reset_prefix_cache`."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    def reset_encoder_cache(self) -> None:
        self.llm_engine.reset_encoder_cache()

    def reset_mm_cache(self) -> None:
        self.llm_engine.reset_mm_cache()

    def sleep(self, level: int = 1) -> None:
        """As `LLMEngine.sleep`."""
        self.llm_engine.sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """As `LLMEngine.wake_up`."""
        self.llm_engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        return self.llm_engine.is_sleeping()

    def update_weights(self, weights: NewWeights) -> None:
        """Weights of the same shapes, in the place of those that are there: from a folder or a .gguf file that has all
        of them, or tensors by the names that checkpoints have them under, all or some. What was cached is forgotten;
        requests that run go on with these. Raises WeightsError, and nothing is changed, where they do not fit."""
        self._set_weights(weights)

    def reload_weights(self, weights_path: str | None = None, weights_iterator: Named | None = None) -> None:
        """As `update_weights`; without an argument the weights are read again from where they came from."""
        self._set_weights(weights_path if weights_path is not None else weights_iterator)

    def _set_weights(self, weights: NewWeights | None) -> None:
        state, done = self._weights.prepared(weights), None
        try:
            self.llm_engine.set_weights(state)
            done = state
        finally:
            self._weights.settle(done)

    @cached_property
    def _weights(self) -> WeightsFiles:
        return WeightsFiles()

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """One of `METHODS` (`entrypoints/rpc.py`), by all ranks of all engines -> the answer of each. A function is
        called with the worker, where that is in this process. Nothing here can be interrupted: `timeout` is accepted,
        and verbs have deadlines of their own."""
        if callable(method):
            return self.llm_engine.apply(lambda worker: method(worker, *args, **(kwargs or {})))
        answer = bound_method(self, method, args, kwargs or {})()
        return [answer] * num_ranks(self.llm_engine.config)

    def apply_model(self, function: Callable[[Any], Any]) -> list[Any]:
        """Calls it with the model, where that is in this process: a module of torch. Prefixes that are cached are those
        of before: `reset_prefix_cache` after a change."""
        return self.llm_engine.apply(lambda worker: function(worker.get_model()))

    def check_health(self) -> None:
        """Raises where the engine is gone."""
        self.llm_engine.check_health()

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Reads an adapter into host memory before a request names it."""
        return self.llm_engine.add_lora(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        """Forgets an adapter; what runs keeps it."""
        return self.llm_engine.remove_lora(lora_id)

    def list_loras(self) -> set[int]:
        """The ids (`lora_int_id`) of the adapters in host memory."""
        return self.llm_engine.list_loras()

    def pin_lora(self, lora_id: int) -> bool:
        """Keeps an adapter in host memory, and in the slot that its first request gets, until it is removed."""
        return self.llm_engine.pin_lora(lora_id)
