"""What `collective_rpc` carries out: methods by the names that vLLM's workers have them under. No function of a caller
goes to another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadence.config.engine_config import EngineConfig
from cadence.core.errors import InvalidRequestError

METHODS = {  # by name: the method of `LLM` and `AsyncLLM`
    "sleep": "sleep",
    "wake_up": "wake_up",
    "is_sleeping": "is_sleeping",
    "reload_weights": "reload_weights",
    "update_weights": "update_weights",
    "reset_prefix_cache": "reset_prefix_cache",
    "reset_mm_cache": "reset_mm_cache",
    "reset_encoder_cache": "reset_encoder_cache",
    "add_lora": "add_lora",
    "remove_lora": "remove_lora",
    "list_loras": "list_loras",
    "pin_lora": "pin_lora",
    "check_health": "check_health",
}


def num_ranks(config: EngineConfig) -> int:
    """Of all engines."""
    sizes = config.parallel
    return sizes.tensor_parallel_size * sizes.pipeline_parallel_size * sizes.data_parallel_size


def bound_method(owner: Any, method: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of it, with these arguments checked. owner: that has all of `METHODS`"""
    if not isinstance(method, str):
        raise InvalidRequestError(
            "method: functions run in the process of an LLM object alone, without ranks", "method"
        )
    if method not in METHODS:
        raise InvalidRequestError(f"method: {method!r} is none of {', '.join(METHODS)}", "method")
    found = getattr(owner, METHODS[method])

    def call() -> Any:
        try:
            return found(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # of the call itself
                raise InvalidRequestError(f"{method}: {error}", "args") from None
            raise

    return call
