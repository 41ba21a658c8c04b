"""The verbs of `core/verbs.py` as functions. `call` is an executor's, or that of an engine in front of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cadence.core.adapter import AdapterOutcome

Call = Callable[[str, Any], Any]  # (verb, payload) -> answer


def kv_blocks(call: Call) -> int:
    """Blocks of the KV cache there is memory for: what was told, or what the largest step leaves of what is allowed."""
    answer: int = call("kv_blocks", None)
    return answer


def allocate_kv(call: Call, num_blocks: int) -> None:
    call("allocate_kv", num_blocks)


def warm_up(call: Call, level: str) -> None:
    """Compiles and captures what requests will need: nothing (none), what is needed most (lazy), or all (full)."""
    call("warm_up", level)


def warm_up_more(call: Call) -> bool:
    """A piece of what `lazy` has left, some tens of milliseconds -> whether there is more"""
    answer: bool = call("warm_up_more", None)
    return answer


def join_round(call: Call) -> None:
    """A forward of the dummy row, beside those of engines that share experts with this one."""
    call("join_round", None)


def prepare_adapter(call: Call, path: str) -> None:
    """Begins to read an adapter, and returns at once; one that was begun is not begun again."""
    call("prepare_adapter", path)


def prepared_adapters(call: Call) -> list[AdapterOutcome]:
    """Of those begun, the ones that were read since the last call. Plans may name their digests from now on."""
    answer: list[AdapterOutcome] = call("prepared_adapters", None)
    return answer


def forget_adapter(call: Call, digest: str) -> None:
    """No later plan puts it into a slot; where it lies in one, it stays there."""
    call("forget_adapter", digest)
