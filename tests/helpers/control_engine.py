"""An engine process with two ranks in processes of their own, which knows made-up verbs beside the real ones:

    python -m tests.helpers.control_engine engine
    python -m tests.helpers.control_engine rank COMMANDS RESULTS [SHARED]

It computes nothing: what it has is a number in each rank.
"""

from __future__ import annotations

import os
import sys
import time
from types import NoneType
from typing import Any

from cadence.config.args import EngineArgs
from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.contract.control import CONTROL, ENGINE, EXECUTOR, WARM_UP_MORE, Verb
from cadence.core.contract.messages import EngineInfo
from cadence.core.errors import InvalidRequestError
from cadence.core.model.kv_spec import LayerKV, plan_layout
from cadence.engine.core import EngineCore
from cadence.engine.core_process import main
from cadence.engine.intake import Intake
from cadence.scheduler.scheduler import Scheduler

ENGINE_COMMAND = (sys.executable, "-m", "tests.helpers.control_engine", "engine")
RANK_COMMAND = (sys.executable, "-m", "tests.helpers.control_engine", "rank")
LONG_S = 120.0
BAD = 13  # a number that ranks refuse


def _side_by_side(answers: list[list[int]]) -> list[int]:
    return [number for answer in answers for number in answer]


def _the_number(payload: Any) -> str:
    return "the number"


def _no_number(payload: Any) -> tuple[str, ...]:
    return ("the number",)


SET = Verb("set_number", int, NoneType, EXECUTOR, LONG_S, keeps=_the_number)
CLEAR = Verb("clear_number", NoneType, NoneType, EXECUTOR, LONG_S, drops=_no_number)
GET = Verb("numbers", NoneType, list[int], EXECUTOR, LONG_S, _side_by_side)
DOUBLE = Verb("double", int, int, ENGINE, LONG_S)
STICK = Verb("stick", NoneType, NoneType, EXECUTOR, 0.2)
UNKNOWN = Verb("unknown", NoneType, NoneType, ENGINE, LONG_S)  # of no table
TABLE = {**CONTROL, **{verb.name: verb for verb in (SET, CLEAR, GET, DOUBLE, STICK)}}


class NumberWorker:
    """A rank's."""

    queues_work = False

    def __init__(self) -> None:
        self._number = 0

    def call(self, verb: Verb[Any, Any], payload: Any) -> Any:
        if verb.name == SET.name and payload == BAD:
            raise InvalidRequestError("not this number", "number")
        if verb.name in (SET.name, CLEAR.name):
            self._number = payload or 0
        elif verb.name == STICK.name:
            time.sleep(LONG_S)
        elif verb.name == GET.name:
            return [self._number]
        return False if verb.name == WARM_UP_MORE.name else None


def rank(arguments: list[str]) -> int:
    from cadence.distributed.ring import Ring
    from cadence.executor.worker.carrier import Carrier
    from cadence.executor.worker.delivery import DeliveryAtOnce, Sending
    from cadence.executor.worker.rank_link import RankLink
    from cadence.executor.worker.rank_loop import BEAT_S, carry_out
    from cadence.executor.worker.wire import decode_seat
    from cadence.process.framing import receive
    from cadence.process.parent import open_wire, start_heartbeat, watch_parent

    wire = open_wire()
    watch_parent(wire)
    commands, results = (Ring.attach(int(descriptor)) for descriptor in arguments[:2])
    start_heartbeat(results.beat, BEAT_S)
    number = decode_seat(receive(wire)).mesh.rank
    link, worker = RankLink(number, commands.reader(number), results.writer()), NumberWorker()
    delivery = DeliveryAtOnce(Sending(worker, False, link.results, ()))  # type: ignore[arg-type]
    return carry_out(link, lambda _: Carrier(worker, link.commands, delivery, TABLE))  # type: ignore[arg-type]


def build(args: EngineArgs) -> tuple[EngineCore, EngineInfo]:
    from cadence.distributed.mesh import Mesh
    from cadence.executor.local.local_ranks import LocalRanks
    from cadence.executor.local.processes import ProcessExecutor
    from cadence.executor.local.rank_group import RankGroup
    from cadence.executor.worker.wire import Seat

    mesh = Mesh(0, 2)
    seats = [Seat(mesh.at(each), 1) for each in range(2)]
    executor = ProcessExecutor(RankGroup(LocalRanks(seats, RANK_COMMAND)), mesh.driver)
    layout = plan_layout([LayerKV(1, 1)], 16, "bfloat16")
    config = SchedulerConfig(4, 64, "fcfs", True, 0, steps_in_flight=1)
    scheduler = Scheduler(config, CacheConfig(16, True, 0.9, 0, 0), layout, 10, 64)
    core = EngineCore(scheduler, executor, Intake([]), depth=1, queues_work=False)
    core.handle(DOUBLE, lambda number: 2 * number)
    return core, EngineInfo(10, 64, 50, "toy", "cpu", 1, False, False)


if __name__ == "__main__":
    status = main(build, TABLE) if sys.argv[1] == "engine" else rank(sys.argv[2:])
    os._exit(status)
