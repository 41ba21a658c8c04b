"""The ranks of an executor, wherever they run: made, watched, and ended by a thread of their own."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from cadence.process.messages import MessageReader, MessageWriter

TICK_S = 0.2  # between two looks at heartbeats
STOP_S = 3.0  # for ranks told to stop, before they are killed
DEATH_S = 2.0  # for a lost connection to become a cause of death


class Ranks(Protocol):
    """How ranks are started and reached: through memory of this machine (`LocalRanks`), or over the network
    (`NetworkRanks`). All calls but those for the properties come from the thread of their group, which lives as long as
    they do: processes end with the thread that made them."""

    @property
    def pids(self) -> list[int]:
        """By rank; on whatever machine."""
        ...

    @property
    def commands(self) -> MessageWriter:
        """To all ranks."""
        ...

    @property
    def results(self) -> Sequence[MessageReader]:
        """By rank."""
        ...

    def busy_seconds(self) -> list[float]:
        """That each has computed."""
        ...

    def start(self) -> None:
        """Returns when all are there. Raises OSError, EngineDeadError."""
        ...

    def descriptors(self) -> list[int]:
        """By rank: it can be read when the rank has something to say, or is gone."""
        ...

    def attend(self, descriptor: int) -> str:
        """Takes what a rank has to say. -> how it has ended; "" = it has not"""
        ...

    def look_after(self) -> str:
        """Once per tick. -> why a rank counts as gone; "" = none does"""
        ...

    def stop(self) -> None:
        """They were told to stop: those that wait for more need not."""
        ...

    def has_left(self, descriptor: int) -> bool:
        """After `stop`, of one that can be read."""
        ...

    def close(self) -> None:
        """Who waits for a rank, or for others in one, wakes up."""
        ...

    def kill(self) -> None: ...

    def release(self) -> None:
        """Gives everything back."""
        ...


class RankGroup:
    """All ranks get every command; each has results and answers of its own. When one of them dies, `death` says how,
    and reading and writing raise ClosedError."""

    def __init__(self, ranks: Ranks) -> None:
        """Returns when all ranks are there. Raises OSError, EngineDeadError."""
        self.ranks = ranks
        self.death = ""  # why they cannot be used any more; "" = they can
        self._is_over = threading.Event()  # `death` is set
        self._lock = threading.Lock()  # guards the end
        self._ended = False
        self._wake, self._waker = os.pipe()
        self._made = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._live, name="ranks", daemon=True)
        self._thread.start()
        self._made.wait()
        if self._error is not None:
            self.end()
            raise self._error

    def await_death(self) -> str:
        """Of ranks that cannot be reached: the cause may come a little later. -> it"""
        self._is_over.wait(DEATH_S)
        return self.death or "the workers were stopped"

    def end(self) -> None:
        """Those that were told to stop have a moment; then all are killed. Everything is given back."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            os.write(self._waker, b"x")
            self._thread.join()
            os.close(self._wake)
            os.close(self._waker)

    def _live(self) -> None:
        try:
            self.ranks.start()
        except Exception as error:
            self._error = error
            self._die(str(error))
        finally:
            self._made.set()
        if not self.death:
            self._watch()
        self.ranks.close()
        self.ranks.kill()
        if not self._ended:  # who asks why may still read
            with contextlib.suppress(OSError):
                os.read(self._wake, 1)
        self.ranks.release()

    def _die(self, why: str) -> None:
        self.death = self.death or why
        self._is_over.set()

    def _watch(self) -> None:
        """Until a rank is gone, stopped or stuck, or `end` is called."""
        poll, by_rank = select.poll(), self.ranks.descriptors()
        for descriptor in (self._wake, *by_rank):
            poll.register(descriptor, select.POLLIN)
        looked_at = 0.0
        while not self.death:
            ready = {descriptor for descriptor, _ in poll.poll(TICK_S * 1000)}
            if self._wake in ready:
                return self._await_exits(poll, set(by_rank))
            found = [self.ranks.attend(descriptor) for descriptor in by_rank if descriptor in ready]
            if (now := time.monotonic()) - looked_at > TICK_S:
                looked_at = now
                found.append(self.ranks.look_after())
            if death := next(filter(None, found), ""):
                self._die(death)

    def _await_exits(self, poll: select.poll, left: set[int]) -> None:
        """Of ranks that were told to stop."""
        self._die("the workers were stopped")
        self.ranks.stop()
        poll.unregister(self._wake)
        ends = time.monotonic() + STOP_S
        while left and (seconds := ends - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(seconds * 1000):
                if self.ranks.has_left(descriptor):
                    poll.unregister(descriptor)
                    left.discard(descriptor)
