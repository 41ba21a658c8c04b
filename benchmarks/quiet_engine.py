"""A server whose engine computes nothing: real processes, scheduler, messages and HTTP around a device that knows its
tokens at once. What it costs is what the host costs.

    python benchmarks/quiet_engine.py serve MODEL [flags of `cadence serve`]     (QUIET_PROFILE=FOLDER: see below)
    python benchmarks/quiet_engine.py engine

Run by its path, it serves with the `cadence` that is found first, which may be another checkout's. With QUIET_PROFILE
the engine writes there what its parts cost when it ends: seconds of CPU of its main thread, none counted twice.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cadence.config.args import EngineArgs
from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.contract.control import Verb
from cadence.core.contract.messages import EngineInfo
from cadence.core.contract.step import NO_PLAN, Mail, StepPlan, StepResult
from cadence.core.model.kv_spec import LayerKV, plan_layout
from cadence.engine import core_loop, fronts
from cadence.engine.core import EngineCore
from cadence.engine.core_process import main
from cadence.engine.intake import Intake
from cadence.process.channel import Channel
from cadence.scheduler.scheduler import Scheduler

ROWS, BLOCKS = 256, 20_000
STEP_S = float(os.environ.get("QUIET_STEP_S", "0.004"))  # that a step takes, in which the engine sleeps
PROFILE = os.environ.get("QUIET_PROFILE", "")


class QuietExecutor:
    """The next token of each row is a number that goes round."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._plan = NO_PLAN
        self.num_tokens = 0  # made so far

    def step(self, plan: StepPlan) -> None:
        self._plan = plan

    def advance(self, step_id: int, first: int, count: int) -> None:
        time.sleep(STEP_S)

    def post(self, step_id: int, mail: Mail) -> None:
        raise AssertionError("nobody waits for mail")

    def result(self) -> StepResult:
        plan = self._plan
        sampling_np = plan.num_samples_np > 0
        lengths_np = plan.num_computed_np[sampling_np] + plan.num_tokens_np[sampling_np]
        tokens_np = (5 + (lengths_np * 31 + plan.rows_np[sampling_np] * 7) % (self._vocab_size - 10)).astype(np.int32)
        self.num_tokens += len(tokens_np)
        return StepResult(plan.step_id, tokens_np[None, :, None], np.zeros((1, len(tokens_np)), dtype=np.int32))

    def call(self, verb: Verb[Any, Any], payload: Any) -> Any:
        return False

    def check(self) -> None: ...

    def busy_seconds(self) -> list[float]:
        return []

    def stop(self) -> None: ...


class Parts:
    """Seconds of CPU by part: what a part calls that is one itself is that one's."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]  # of the parts that were called, by depth

    def time(self, owner: Any, name: str, part: str) -> None:
        """Every call of `owner.name` from here on is `part`'s."""
        function: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.thread_time() - start
                self.seconds[part] += took - self._inner.pop()
                self._inner[-1] += took

        setattr(owner, name, timed)

    def write(self, folder: str, num_tokens: int) -> None:
        found = {"tokens": num_tokens, "total": time.thread_time(), **self.seconds}
        Path(folder, f"engine-{os.getpid()}.json").write_text(json.dumps(found), encoding="utf-8")


def build(args: EngineArgs) -> tuple[EngineCore, EngineInfo]:
    vocab_size = json.loads((Path(args.model) / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    max_model_len = args.max_model_len or 1024
    config = SchedulerConfig(ROWS, 8192, "fcfs", True, 0, steps_in_flight=1)
    layout = plan_layout([LayerKV(1, 1)], 16, "bfloat16")
    scheduler = Scheduler(config, CacheConfig(16, True, 0.9, 0, 0), layout, BLOCKS, max_model_len)
    executor = QuietExecutor(vocab_size)
    core = EngineCore(scheduler, executor, Intake([]), depth=1, queues_work=False)
    if PROFILE:
        _profile(core, executor)
    return core, EngineInfo(BLOCKS, max_model_len, vocab_size, "quiet", "cpu", 2**30, False, False)


def _profile(core: EngineCore, executor: QuietExecutor) -> None:
    """Written when the engine is closed."""
    parts = Parts()
    for owner, name, part in (
        (Scheduler, "schedule", "schedule"),
        (Scheduler, "update", "update"),
        (QuietExecutor, "result", "device"),
        (QuietExecutor, "advance", "device"),
        (fronts, "encode", "encode"),
        (Channel, "send", "send"),
        (core_loop, "decode_request", "requests"),
        (fronts, "decode_to_engine", "requests"),
        (EngineCore, "add", "requests"),
        (fronts.ManyFronts, "receive", "receive"),
        (fronts.OneFront, "receive", "receive"),
        (fronts.ManyFronts, "send_updates", "by front"),
        (EngineCore, "step", "loop"),
    ):
        parts.time(owner, name, part)
    began = time.thread_time()
    close = core.close

    def closed() -> None:
        parts.seconds["start"] = began
        parts.write(PROFILE, executor.num_tokens)
        close()

    core.close = closed  # type: ignore[method-assign]


def serve(argv: list[str]) -> int:
    from cadence.entrypoints.cli.serve import build_parser, read_flags
    from cadence.entrypoints.server.http.sockets.listen import bind
    from cadence.entrypoints.server.server import run_server

    args, options = read_flags(build_parser().parse(argv))
    return run_server(args, options, bind(options), [sys.executable, __file__, "engine"])


if __name__ == "__main__":
    sys.exit(main(build) if sys.argv[1] == "engine" else serve(sys.argv[2:]))
