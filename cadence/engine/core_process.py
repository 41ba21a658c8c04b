"""The engine in a process of its own. Its standard input is one end of a socketpair; the front holds the other.

    python -m cadence.engine.core_process

The front sends the engine's options first, as JSON; then `ToEngine` messages. This process answers with `FromEngine`
messages, among them a heartbeat. It leaves when told to, when the front is gone, or when a step fails. Where several
fronts share it, the other end is their owner's, which sends a channel to each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.core.contract.codec import encode
from cadence.core.contract.control import CONTROL, ControlTable
from cadence.core.contract.messages import EngineInfo, FromEngine
from cadence.core.errors import CadenceError
from cadence.engine.core import EngineCore
from cadence.engine.core_loop import CoreLoop
from cadence.engine.fronts import ManyFronts, OneFront
from cadence.engine.heartbeat import HEARTBEAT_S, StepClock
from cadence.engine.log_format import set_up_logging
from cadence.engine.log_queue import queue_output
from cadence.executor.worker.group_memory import GroupSeat
from cadence.executor.worker.rounds import NO_ROUNDS, AnyRounds, Rounds
from cadence.process.channel import Channel
from cadence.process.ended import PARENT_GONE
from cadence.process.parent import open_wire, start_heartbeat, watch_parent

if TYPE_CHECKING:
    from cadence.executor.factory import ExecutorFactory

OPTIONS_S = 60.0  # for the options to arrive; they are sent before this process exists
FLUSH_S = 1.0  # for the last message to leave


class StartOptions(NamedTuple):
    args: EngineArgs
    is_shared: bool  # by several fronts
    rounds: AnyRounds  # how its forwards go with those of others
    join_s: float  # for ranks of other machines; 0 = as long as usual

    @property
    def is_plain(self) -> bool:
        """Whether `args` say all that an engine is built from."""
        return self.rounds is NO_ROUNDS and not self.join_s


def receive_options(channel: Channel) -> StartOptions:
    (message,) = channel.receive_first(OPTIONS_S)  # commands follow once the engine is ready
    options = json.loads(message)
    keep_to(options.pop("cpus", ()))
    is_shared, join_s = options.pop("is_shared", False), options.pop("join_s", 0.0)
    seat = options.pop("seat", None)
    rounds = Rounds(GroupSeat(seat["rank"], seat["memory"], tuple(seat["bells"]))) if seat else NO_ROUNDS
    return StartOptions(EngineArgs(**options), is_shared, rounds, join_s)


def keep_to(cpus: Sequence[int]) -> None:
    """Runs on these CPUs alone, as do all threads and processes made from now on; () = on any."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def build_core(
    args: EngineArgs,
    new_executor: ExecutorFactory | None = None,
    rounds: AnyRounds = NO_ROUNDS,
    join_s: float = 0.0,
) -> tuple[EngineCore, EngineInfo]:
    """Loads the model. Imports torch, which may take long: heartbeats are sent by now. `new_executor`: None = a device
    in this process."""
    from cadence.engine.build import build_engine
    from cadence.executor.factory import open_executor

    own = partial(open_executor, rounds=rounds, join_s=join_s)
    parts = build_engine(args, holds_text=False, new_executor=new_executor or own)
    assert isinstance(parts.core, EngineCore)
    info = EngineInfo(
        num_blocks=parts.num_blocks,
        max_model_len=parts.config.model.max_model_len,
        vocab_size=parts.vocab_size,
        device_name=parts.device_name,
        kind=parts.caps.kind,
        total_memory=parts.caps.total_memory,
        native_bf16=parts.caps.native_bf16,
        native_fp16=parts.caps.native_fp16,
        count=parts.caps.count,
    )
    return parts.core, info


def _built(
    options: StartOptions, build: Callable[[EngineArgs], tuple[EngineCore, EngineInfo]]
) -> tuple[EngineCore, EngineInfo]:
    if options.is_plain:
        return build(options.args)
    return build_core(options.args, rounds=options.rounds, join_s=options.join_s)


def main(
    build: Callable[[EngineArgs], tuple[EngineCore, EngineInfo]] = build_core, table: ControlTable = CONTROL
) -> int:
    """table: the verbs that fronts may call"""
    wire = open_wire()
    watch_parent(wire)
    queue_output()
    set_up_logging(env.log_level())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; the front decides
    channel, clock = Channel(wire), StepClock()
    fronts: OneFront | ManyFronts = OneFront(channel)
    try:
        options = receive_options(channel)
        channel.bell = options.rounds.bell
        fronts = ManyFronts(channel) if options.is_shared else fronts
        start_heartbeat(lambda: fronts.beat(encode(FromEngine(heartbeat=clock.heartbeat()))), HEARTBEAT_S)
        core, info = _built(options, build)
        fronts.ready(info)
        CoreLoop(core, fronts, clock, options.rounds, table).run()
        core.close()  # ranks on other machines learn that this is an orderly end
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(PARENT_GONE)  # no clean-up
    except Exception as error:
        kind = "" if isinstance(error, CadenceError) else f"{type(error).__name__}: "
        fronts.fail(encode(FromEngine(fatal=f"{kind}{error}")))
        channel.close(FLUSH_S)
        if not kind:
            return 1
        raise
    channel.close(FLUSH_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
