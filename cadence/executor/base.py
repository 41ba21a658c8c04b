"""How the engine reaches the device half: an ordered stream of messages, each a method here.

Messages are carried out in the order they are sent; results of forwards come back in that order too. Plans and results
can be written as bytes (`core/codec.py`), so that the device half may run in this process or in others.
"""

from __future__ import annotations

from typing import Protocol

from cadence.core.kv_spec import KVLayout
from cadence.core.step import StepPlan, StepResult


class Executor(Protocol):
    queues_work: bool  # forwards run while the host goes on; where not, `advance` returns when they have run

    @property
    def layout(self) -> KVLayout: ...

    @property
    def vocab_size(self) -> int: ...

    def kv_bytes(self) -> int:
        """Bytes the KV cache may take."""
        ...

    def kv_block_bytes(self) -> int: ...

    def allocate_kv(self, num_blocks: int) -> None: ...

    def warm_up(self, level: str) -> None:
        """Compiles and captures what requests will need: nothing (none), what is needed most (lazy), or all (full)."""
        ...

    def warm_up_more(self) -> bool:
        """A piece of what `lazy` has left, some tens of milliseconds -> whether there is more"""
        ...

    def step(self, plan: StepPlan) -> None:
        """Rows end, begin and grow as the plan says. Its forwards run when they are asked for."""
        ...

    def advance(self, step_id: int, first: int, count: int) -> None:
        """Queues forwards [first, first + count) of the newest step; those before have been asked for."""
        ...

    def result(self) -> StepResult:
        """The next part of what was queued; waits for that part only."""
        ...

    def close(self) -> None:
        """Gives back all that the device holds, once what is queued is done. Nothing may be called afterwards."""
        ...
