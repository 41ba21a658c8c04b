"""Carries out messages on a worker, in the order they come."""

from __future__ import annotations

import torch

from cadence.core.contract.codec import answer_to, decode_call, decode_mail, decode_plan, encode, payload_of
from cadence.core.contract.control import CONTROL, ControlTable
from cadence.core.errors import CadenceError
from cadence.device.probe import open_device
from cadence.distributed.shared_areas import RankAreas, open_shared
from cadence.executor.worker import wire
from cadence.executor.worker.delivery import Delivery, Sending, open_delivery
from cadence.executor.worker.rank_link import Fail, RankLink
from cadence.executor.worker.wire import ModelFacts, Seat
from cadence.executor.worker.worker import Worker
from cadence.executor.worker.worker_config import WorkerConfig
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.process.messages import MessageReader


class Carrier:
    """Results leave as soon as they exist: a device that computes in its calls is asked for what may come back
    together, piece by piece, one that queues work for all at once."""

    def __init__(
        self, worker: Worker, commands: MessageReader, delivery: Delivery, table: ControlTable = CONTROL
    ) -> None:
        self._worker = worker
        self._table = table
        self._commands = commands
        self._delivery = delivery
        self._num_together = 1  # of the newest step
        self._waits = False  # its first forward, for mail
        self._after_mail = (0, 0)  # forwards [first, end) that were asked for meanwhile

    @classmethod
    def open(cls, seat: Seat, config: WorkerConfig, link: RankLink, areas: RankAreas, fail: Fail) -> Carrier:
        """areas: what this rank computes with others in. fail: for what happens outside of `run`"""
        device = open_device(config.device.kind, seat.num_threads, seat.gpu, seat.num_sharers)
        collectives, links = open_shared(areas, device, seat.mesh, config.device.deterministic)
        worker = Worker(device, config, ranks=ONE_RANK if seat.has_all else collectives, links=links)
        collectives.all_reduce(torch.zeros(1, device=device.torch_device))
        device.synchronize()  # all are here; where one is gone, the others are told
        collectives.check()
        link.results.write(wire.READY + wire.encode_plain(ModelFacts(worker.layout, worker.vocab_size)))
        sending = Sending(worker, seat.mesh.is_driver, link.results, (collectives, links))
        return cls(worker, link.commands, open_delivery(worker.queues_work, sending, fail))

    def run(self) -> None:
        while True:
            message = self._commands.read()
            kind, data = message[:1], message[1:]
            if kind == wire.STOP:
                self._delivery.close()
                return self._worker.stop()
            self._carry_out(kind, data)

    def _carry_out(self, kind: bytes, data: bytes) -> None:
        if kind == wire.STEP:
            plan = decode_plan(data)
            self._num_together, self._waits = plan.num_together, bool(plan.waits)
            self._worker.step(plan)
        elif kind == wire.ADVANCE:
            self._advance(*wire.decode_advance(data))
        elif kind == wire.POST:
            step_id, mail = wire.decode_post(data)
            self._post(step_id, mail)
        elif kind == wire.CALL:
            self._delivery.answer(self._answer(data))
        else:
            raise CadenceError(f"a message of kind {kind!r} is none that a worker knows")

    def _advance(self, step_id: int, first: int, count: int) -> None:
        at, end = first, first + count
        while at < end:
            piece = end - at if self._worker.queues_work else min(self._num_together, end - at)
            with self._delivery.computing():
                self._worker.advance(step_id, at, piece)
            at += piece
            if self._waits:
                self._after_mail = (at, end)
                return
            self._delivery.results()

    def _post(self, step_id: int, mail: bytes) -> None:
        with self._delivery.computing():
            self._worker.post(step_id, decode_mail(mail))
        self._waits = False
        self._delivery.results()
        first, end = self._after_mail
        self._advance(step_id, first, end - first)

    def _answer(self, data: bytes) -> bytes:
        """What a call raises is its answer; who asked decides what follows."""
        call = decode_call(data)
        try:
            verb = self._table[call.verb]
            answer = self._worker.call(verb, payload_of(verb, call))
        except Exception as error:
            answer = error
        return wire.ANSWER + encode(answer_to(call, answer))
