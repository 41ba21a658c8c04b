"""An engine asleep: which of its parts are, and what its ranks do for it; and other weights for one that runs."""

from __future__ import annotations

from cadence.core.contract.control import (
    CHECK_WEIGHTS,
    GIVE_BACK_MEMORY,
    LOAD_WEIGHTS,
    SLEEP,
    SLEEPING_PARTS,
    TAKE_BACK_MEMORY,
    UPDATE_WEIGHTS,
    WAKE_UP,
)
from cadence.core.contract.sleep import MEMORY_TAGS, SCHEDULING, SLEEP_TAGS, WEIGHTS, WeightsState
from cadence.core.errors import CadenceError, InvalidRequestError
from cadence.engine.core import EngineCore


class EngineSleep:
    """Carries out the verbs of sleep and of weights. Awake, until it is put to sleep."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._asleep: tuple[str, ...] = ()  # tags
        self._level = 0
        core.handle(SLEEP, self._begin)
        core.handle(WAKE_UP, self._end)
        core.handle(SLEEPING_PARTS, lambda _: list(self._asleep))
        core.handle(UPDATE_WEIGHTS, self._update_weights)

    def _begin(self, level: int) -> None:
        """One that sleeps at another level wakes first."""
        if (self._level, self._asleep) == (level, _tags_of(level)):
            return
        if self._level:
            self._end("")
        self._core.hold(SLEEP.name, True)
        self._core.empty()
        self._level, self._asleep = level, _tags_of(level)
        if level:
            try:
                self._core.call_ranks(GIVE_BACK_MEMORY, level)
            except CadenceError:
                self._end("")  # ranks may have given back some of theirs
                raise

    def _end(self, tag: str) -> None:
        """tag: "" = of all parts. What raises here still sleeps. Steps begin again by a call of their own."""
        for each in [each for each in self._asleep if tag in ("", each)]:
            if each in MEMORY_TAGS:
                self._core.call_ranks(TAKE_BACK_MEMORY, each)
            self._asleep = tuple(left for left in self._asleep if left != each)
        if not self._asleep:
            self._level = 0
            self._core.hold(SLEEP.name, False)

    def _update_weights(self, state: WeightsState) -> None:
        """All ranks have looked at the files before one writes."""
        if WEIGHTS in self._asleep:
            raise InvalidRequestError("the weights sleep: wake_up(tags=['weights']) comes first")
        self._core.call_ranks(CHECK_WEIGHTS, state)
        self._core.empty()
        self._core.call_ranks(LOAD_WEIGHTS, state, may_fail=False)


def _tags_of(level: int) -> tuple[str, ...]:
    return SLEEP_TAGS if level else (SCHEDULING,)
