"""How results leave a worker: at once where its device computes in its calls, after the device's work where that is
queued, so that the next message is carried out meanwhile."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from cadence.core.contract.codec import encode_result
from cadence.core.contract.step import StepResult
from cadence.executor.worker import wire
from cadence.executor.worker.rank_link import Fail
from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.links import StageLinks
from cadence.process.messages import ResultWriter

Others = tuple[Collectives, StageLinks]  # whom a rank computes with
_RESULTS, _END = b"", b"\0"  # in the place of an answer


class ResultSource(Protocol):
    @property
    def num_queued(self) -> int: ...

    def result(self) -> StepResult: ...


class Sending:
    """Takes results from the worker, in their order. What ranks have computed together counts only where all were
    there to the end."""

    def __init__(self, source: ResultSource, is_driver: bool, results: ResultWriter, others: Others) -> None:
        """is_driver: whether its results are those of all ranks"""
        self._source = source
        self._is_driver = is_driver
        self.results = results
        self.others = others

    def send_one(self) -> None:
        result = self._source.result()
        for others in self.others:
            others.check()
        if self._is_driver:
            self.results.write(wire.RESULT + encode_result(result))

    def send_all(self) -> None:
        while self._source.num_queued:
            self.send_one()


class Delivery(Protocol):
    def computing(self) -> AbstractContextManager[None]:
        """Around what the worker is asked to compute."""
        ...

    def results(self) -> None:
        """All that the worker has queued is to leave."""
        ...

    def answer(self, message: bytes) -> None:
        """After all results that were queued before."""
        ...

    def close(self) -> None:
        """When all of it has left."""
        ...


class DeliveryAtOnce:
    """Of a device that computes in its calls."""

    def __init__(self, sending: Sending) -> None:
        self._sending = sending

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What is done inside begins when this stage has what it computes with."""
        begin = time.monotonic()
        yield
        sending = self._sending
        sending.results.add_busy(time.monotonic() - max(begin, sending.others[1].arrived()))

    def results(self) -> None:
        self._sending.send_all()

    def answer(self, message: bytes) -> None:
        self._sending.results.write(message)

    def close(self) -> None:
        """Nothing waits."""


class ThreadedDelivery:
    """Of a device that queues work: a thread of its own waits for it."""

    def __init__(self, sending: Sending, fail: Fail) -> None:
        self._sending = sending
        self._fail = fail
        # Since when, and an answer, or what else there is to do.
        self._waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="results", daemon=True)
        self._thread.start()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The thread knows how long it took."""
        yield

    def results(self) -> None:
        self._waiting.put((time.monotonic(), _RESULTS))

    def answer(self, message: bytes) -> None:
        self._waiting.put((time.monotonic(), message))

    def close(self) -> None:
        self._waiting.put((0.0, _END))
        self._thread.join()

    def _live(self) -> None:
        try:
            self._send()
        except Exception as error:
            self._fail(error)

    def _send(self) -> None:
        done = 0.0  # when the device had done all that was sent
        while True:
            since, message = self._waiting.get()
            if message == _END:
                return
            if message == _RESULTS:
                self._sending.send_all()
                begin, done = max(since, done), time.monotonic()
                self._sending.results.add_busy(done - begin)
            else:
                self._sending.results.write(message)


def open_delivery(queues_work: bool, sending: Sending, fail: Fail) -> Delivery:
    return ThreadedDelivery(sending, fail) if queues_work else DeliveryAtOnce(sending)
