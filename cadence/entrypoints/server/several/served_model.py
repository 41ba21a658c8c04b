"""One of several models: an engine, and the state that routes share, while it is in memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.config.args import EngineArgs
from cadence.config.reference import find_model
from cadence.config.server.models_file import ModelPlan
from cadence.core.errors import EngineDeadError
from cadence.core.lora_request import LoRARequest
from cadence.core.memory import give_back_memory
from cadence.engine.fleet.dp_client import open_engines
from cadence.engine.supervise.engine_client import EngineClient
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.server.http.early_rejection import EarlyRejection
from cadence.entrypoints.server.make_state import KeptParts, ServerParts, make_state
from cadence.entrypoints.server.routes.served_adapters import served_at_start
from cadence.entrypoints.server.routes.state import ServerState
from cadence.entrypoints.server.several.entry import Loaded
from cadence.entrypoints.server.several.measures import cache_bytes, is_on_gpu, needed_bytes, resident_bytes
from cadence.entrypoints.server.several.store import SharedPeers

GPU_CONTEXT_BYTES = 600 * 2**20  # of a GPU, that an engine has while it sleeps
ENGINE_LOST = "its engine stopped, and was given up"


@dataclass(frozen=True, slots=True)
class EngineStart:
    command: Sequence[str]
    heartbeat_factor: int  # an engine that starts may be silent for so many times as long as one that is ready
    say: Callable[[str], None]


@dataclass(slots=True, eq=False)
class Running:
    llm: AsyncLLM
    state: ServerState
    app: ASGIApp  # for requests for text and values: rejects what is too much before it is parsed
    watching: asyncio.Task[None] | None = None


class ServedModel:
    """A `Source` of the catalog."""

    def __init__(
        self, plan: ModelPlan, parts: ServerParts, peers: SharedPeers, start: EngineStart, app: Callable[[], ASGIApp]
    ) -> None:
        """app: the routes, which all models share"""
        self.plan = plan
        self.kept: KeptParts | None = None  # once it was loaded
        self.max_model_len = 0  # likewise
        self.modalities: list[str] = []  # likewise
        self.on_lost: Callable[[Running, str], None] = lambda running, why: None
        self._parts = parts
        self._peers = peers
        self._start = start
        self._app = app
        self._engines: EngineClient | None = None  # while it has some, also before they are ready
        self._estimate = 0
        self._first_adapters = served_at_start(plan.options.lora_modules, (), "", enabled=True).all()

    @property
    def name(self) -> str:
        return self.plan.entry.name

    @property
    def adapters(self) -> list[LoRARequest]:
        """Also before it is loaded."""
        return self._first_adapters if self.kept is None else self.kept.adapters.all()

    async def need(self) -> int:
        self._estimate = await asyncio.to_thread(self._need)
        return self._estimate

    def _need(self) -> int:
        args: EngineArgs = self.plan.args
        token = args.hf_token if isinstance(args.hf_token, str) else ""
        files = find_model(args.model, revision=args.revision or "", download_dir=args.download_dir or "", token=token)
        return needed_bytes(args, files)

    async def load(self) -> Loaded[Running]:
        plan, options = self.plan, self.plan.options
        silence = options.engine_heartbeat_timeout
        limits = SupervisorLimits(silence, self._start.heartbeat_factor * silence, options.engine_step_timeout)
        self._start.say(f"{self.name}: loading {plan.args.model}")
        llm = await AsyncLLM.start(
            plan.args, self._say, engine_command=self._start.command, limits=limits, open_client=self._open_engines
        )
        try:
            running = self._running(llm)
            held = await self._held(llm)
        except BaseException:
            await llm.shutdown(drain=False)
            raise
        running.watching = asyncio.ensure_future(self._watch(running))
        return Loaded(running, held)

    def _open_engines(self, options: dict[str, Any], command: Sequence[str], limits: SupervisorLimits) -> EngineClient:
        self._engines = open_engines(options, command, limits)
        return self._engines

    @property
    def engine_pids(self) -> list[int]:
        return self._engines.pids if self._engines is not None else []

    def _running(self, llm: AsyncLLM) -> Running:
        state = make_state(llm, self.plan.options, self._parts, self._peers.of(self.name), self.kept)
        self.kept = KeptParts(state.admission, state.adapters)
        self.max_model_len = llm.config.model.max_model_len
        self.modalities = ["text", *llm.inputs.placeholders]
        return Running(llm, state, EarlyRejection(self._to_routes, state.admission))

    async def _to_routes(self, scope: Scope, receive: Receive, send: Send) -> None:
        """They are made with the first request, which may come after the first load."""
        await self._app()(scope, receive, send)

    async def unload(self, value: Running) -> None:
        if value.watching is not None:
            value.watching.cancel()
        self._peers.forget(self.name)
        await value.llm.shutdown(drain=False)
        self._start.say(f"{self.name}: unloaded")
        asyncio.get_running_loop().call_soon(_collect)

    async def sleep(self, value: Running) -> int:
        """On a GPU the weights go to host memory. On a CPU that is where they are: they are read again."""
        on_gpu = is_on_gpu(self.plan.args)
        await value.llm.sleep(1 if on_gpu else 2)
        self._say("asleep")
        return GPU_CONTEXT_BYTES if on_gpu else await self._resident(value.llm)

    async def wake(self, value: Running) -> int:
        await value.llm.wake_up()
        self._say("awake")
        return await self._held(value.llm)

    def _say(self, line: str) -> None:
        self._start.say(f"{self.name}: {line}")

    async def _held(self, llm: AsyncLLM) -> int:
        """On the CPU the cache is taken as requests fill it: it is counted whole, beside what the engine holds now."""
        if is_on_gpu(self.plan.args):
            return self._estimate
        resident = await self._resident(llm)
        return resident + cache_bytes(self.plan.args) if resident else self._estimate

    async def _resident(self, llm: AsyncLLM) -> int:
        return await asyncio.to_thread(resident_bytes, [pid for pid in llm.engine_pids if pid])

    async def _watch(self, running: Running) -> None:
        await running.llm.dead.wait()
        why = ENGINE_LOST
        try:
            await running.llm.check_health()
        except EngineDeadError as error:
            why = str(error)
        running.watching = None  # it ends here, and not by `unload`
        self.on_lost(running, why)


def _collect() -> None:
    """What an engine's front leaves refers to itself."""
    gc.collect()
    give_back_memory()
