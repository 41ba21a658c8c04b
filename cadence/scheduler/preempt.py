"""When blocks run out: the least important requests lose their rows and wait for new ones."""

from __future__ import annotations

from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.queue import WaitingQueue
from cadence.scheduler.request_state import NOT_TOLD, RequestState, Status
from cadence.scheduler.retiring import Retiring
from cadence.scheduler.running import RunningList


class Preemption:
    def __init__(self, running: RunningList, waiting: WaitingQueue, retiring: Retiring, kv: KVManager) -> None:
        self._running = running
        self._waiting = waiting
        self._retiring = retiring
        self._kv = kv
        self.count = 0

    def make_room(self, draft: PlanDraft, needy: RequestState, num_blocks: int) -> bool:
        """Whether `needy` may take `num_blocks` now. If not, it sits this step out or has lost its own row.

        Blocks of steps in flight count as good as free, so no request is preempted for blocks that soon come.
        """
        kv, retiring = self._kv, self._retiring
        while kv.num_free + retiring.num_blocks - draft.claimed < num_blocks:
            draft.short = True
            victim = self._running[-1]
            self.preempt(victim)
            if victim is needy:
                return False
        if kv.num_free - draft.claimed >= num_blocks:
            return True
        draft.short = True
        draft.claimed += num_blocks
        return False

    def preempt_all(self) -> None:
        """Everyone who runs waits for a row, and computes again what it had."""
        while self._running:
            self.preempt(self._running[-1])

    def preempt(self, victim: RequestState) -> None:
        """No plan that is being drawn up names its row."""
        self._running.remove(victim)
        self.count += 1
        victim.num_preemptions += 1
        victim.told_in = NOT_TOLD
        victim.status = Status.WAITING
        self._retiring.retire(victim)
        self._waiting.push(victim)
