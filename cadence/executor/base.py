"""How the engine reaches the device half: in this process, or later in others, behind the same verbs."""

from __future__ import annotations

from typing import Protocol

from cadence.core.kv_spec import KVLayout
from cadence.core.step import StepPlan, StepResult


class Ticket(Protocol):
    """A step in flight."""

    def result(self) -> StepResult:
        """The next part of its result; waits for that part only. Not to be called after the last one."""
        ...

    def cut(self) -> int:
        """Gives up the forwards of a burst that have not begun -> how many the step has in the end, at least 1."""
        ...


class Executor(Protocol):
    @property
    def layout(self) -> KVLayout: ...

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

    def step(self, plan: StepPlan) -> Ticket:
        """Queues the step and returns at once."""
        ...

    def close(self) -> None:
        """Gives back all that the device holds, once what is queued is done. Nothing may be called afterwards."""
        ...
