"""Engine processes that misbehave, started in place of the real one by the command line the supervisor is given:

    python -m tests.server.engines NAME            an engine process
    python -m tests.server.engines serve NAME ...  `cadence serve ...` with such an engine

`toy` loads no model: the real loop and scheduler over a device that counts, so that it starts in no time. `poison` is
the real engine, and prompts that hold one of the tokens below do to it what they say.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cadence.config.args import EngineArgs
from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.contract.control import WARM_UP_MORE, Verb
from cadence.core.contract.messages import EngineInfo
from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import NO_PLAN, Mail, PromptLogprobs, StepPlan, StepResult
from cadence.core.contract.update import RequestUpdate
from cadence.core.model.kv_spec import LayerKV, plan_layout
from cadence.engine.core import EngineCore
from cadence.engine.core_process import build_core, main
from cadence.engine.grammar_preparer import GrammarPreparer
from cadence.engine.intake import Intake
from cadence.executor.interface.base import Executor
from cadence.scheduler.features.grammar.feature import GrammarOutputs
from cadence.scheduler.scheduler import Scheduler

UNREADABLE, RAISES, ABORTS, HANGS, UNSHOWABLE, GARBLED = 201, 202, 203, 204, 205, 206  # tokens of a prompt
FATAL_AFTER = 3  # tokens of output
STEP_S = float(os.environ.get("CADENCE_TOY_STEP_S", "0.002"))  # of the toy


def engine_command(name: str) -> list[str]:
    return [sys.executable, "-m", "tests.server.engines", name]


class ToyExecutor:
    """The next token is a function of the first token, the last one and the position. One forward a step."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: dict[int, list[int]] = {}
        self._plan = NO_PLAN

    def step(self, plan: StepPlan) -> None:
        for row in plan.ended:
            del self._rows[row]
        for new in plan.begun:
            self._rows[new.row] = new.token_ids_np.tolist()
        self._plan = plan

    def advance(self, step_id: int, first: int, count: int) -> None:
        time.sleep(STEP_S)

    def post(self, step_id: int, mail: Mail) -> None:
        raise AssertionError("nobody waits for mail")

    def result(self) -> StepResult:
        plan = self._plan
        sampled = [[self._next(row)] for row in plan.rows_np[plan.num_samples_np > 0].tolist()]
        return StepResult(
            plan.step_id, np.array([sampled], dtype=np.int32), np.zeros((1, len(sampled)), dtype=np.int32)
        )

    def call(self, verb: Verb[Any, Any], payload: Any) -> Any:
        assert verb is WARM_UP_MORE, f"the toy does not {verb.name}"
        return False

    def check(self) -> None: ...

    def busy_seconds(self) -> list[float]:
        return []

    def stop(self) -> None: ...

    def _next(self, row: int) -> int:
        tokens = self._rows[row]
        tokens.append((tokens[0] * 131 + tokens[-1] * 31 + len(tokens) * 17) % (self._vocab_size - 10) + 5)
        return tokens[-1]


class PoisonedExecutor:
    """Passes plans on to a real one, until a poisoned row has `FATAL_AFTER` tokens of output."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.advance, self.post, self.result = executor.advance, executor.post, executor.result
        self.call, self.check, self.stop = executor.call, executor.check, executor.stop
        self.busy_seconds = executor.busy_seconds
        self._fatal: dict[int, tuple[int, int]] = {}  # row -> (token, tokens after which it strikes)

    def step(self, plan: StepPlan) -> None:
        for row in plan.ended:
            self._fatal.pop(row, None)
        for new in plan.begun:
            for token in {RAISES, ABORTS, HANGS} & set(new.token_ids_np[: new.prompt_len].tolist()):
                self._fatal[new.row] = token, new.prompt_len + FATAL_AFTER
        for row, computed in zip(plan.rows_np.tolist(), plan.num_computed_np.tolist(), strict=True):
            token, after = self._fatal.get(row, (0, 0))
            if token and computed + plan.num_forwards > after:
                _strike(token)
        self._executor.step(plan)


def _strike(token: int) -> None:
    if token == RAISES:
        raise RuntimeError("a kernel failed: planted secret detail")
    if token == ABORTS:
        os.abort()
    time.sleep(3600)


class PoisonedCore:
    """In front of a core: it cannot take in some requests, and spoils what it says of others."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._spoiled: dict[str, int] = {}  # request id -> token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def add(self, request: EngineRequest) -> None:
        if UNREADABLE in request.prompt_token_ids:
            raise TypeError("planted secret detail")
        for token in {UNSHOWABLE, GARBLED} & set(request.prompt_token_ids):
            self._spoiled[request.request_id] = token
        self._core.add(request)

    def step(self) -> list[RequestUpdate]:
        updates = self._core.step()
        for update in updates:
            token = self._spoiled.get(update.request_id)
            if token == UNSHOWABLE:
                update.prompt_logprobs = [PromptLogprobs(1, _IDS_NP, np.zeros((0, 1), np.float32), _IDS_NP[0])]
            elif token == GARBLED:
                update.new_token_ids = ["no token"]  # type: ignore[list-item]
        return updates


class DyingCore(PoisonedCore):
    def add(self, request: EngineRequest) -> None:
        os._exit(9)


_IDS_NP = np.zeros((1, 1), np.int32)


def poison(args: EngineArgs) -> tuple[Any, EngineInfo]:
    from cadence.executor.factory import OpenExecutor, open_executor  # torch: the toy does without

    def open_poisoned(*asked: Any) -> OpenExecutor:
        opened = open_executor(*asked)
        return replace(opened, executor=PoisonedExecutor(opened.executor))

    core, info = build_core(args, open_poisoned)
    return PoisonedCore(core), info


def _no_grammars(on_ready: Callable[[], None]) -> Any:
    raise AssertionError("the toy has no grammars")


def toy(args: EngineArgs, front: type[PoisonedCore] = PoisonedCore) -> tuple[Any, EngineInfo]:
    vocab_size = json.loads((Path(args.model) / "config.json").read_text())["vocab_size"]
    max_model_len, num_blocks = args.max_model_len or 512, 4000
    config = SchedulerConfig(64, 2048, "fcfs", True, 0, steps_in_flight=1)
    layout = plan_layout([LayerKV(1, 1)], 16, "bfloat16")
    scheduler = Scheduler(
        config, CacheConfig(16, True, 0.9, 0, 0), layout, num_blocks, max_model_len, [GrammarOutputs()]
    )
    grammars = Intake([GrammarPreparer(_no_grammars)])
    core = EngineCore(scheduler, PoisonedExecutor(ToyExecutor(vocab_size)), grammars, depth=1, queues_work=False)
    return front(core), EngineInfo(num_blocks, max_model_len, vocab_size, "toy", "cpu", 2**30, False, False)


def dies_at_first_request(args: EngineArgs) -> tuple[Any, EngineInfo]:
    return toy(args, DyingCore)


def once(marker: str) -> int:
    """A toy the first time, afterwards a process that dies before it has said anything, twice; then a toy again."""
    path = Path(marker)
    starts = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (starts + 1))
    return os._exit(7) if starts in (1, 2) else main(toy)


def serve(name: str, argv: list[str]) -> int:
    from cadence.entrypoints.cli.serve import build_parser, read_flags
    from cadence.entrypoints.server.replacement import bind_or_inherit
    from cadence.entrypoints.server.server import run_server

    args, options = read_flags(build_parser().parse(argv))
    bound, replacement = bind_or_inherit(options)
    return run_server(args, options, bound, engine_command(name), replacement)


BUILDERS = {build.__name__: build for build in (poison, toy, dies_at_first_request)}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(serve(sys.argv[2], sys.argv[3:]))
    if sys.argv[1] == "silent_death":
        os._exit(7)
    if sys.argv[1].startswith("once:"):
        sys.exit(once(sys.argv[1].removeprefix("once:")))
    sys.exit(main(BUILDERS[sys.argv[1]]))
