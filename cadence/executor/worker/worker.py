"""One device with its model and its runner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch

from cadence.core.adapter import AdapterOutcome
from cadence.core.contract import control
from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.sleep import WEIGHTS, WeightsState
from cadence.core.contract.step import StepPayloads
from cadence.core.errors import ConfigError
from cadence.core.model.state_spec import StateRoom
from cadence.core.sampling_params import SamplingParams
from cadence.device.base import Device
from cadence.executor.worker.engine_share import NO_SHARE, EngineShare, NoShare
from cadence.executor.worker.load import load_models
from cadence.executor.worker.sleep import DeviceSleep
from cadence.executor.worker.state_memory import NO_STATES
from cadence.executor.worker.worker_config import WorkerConfig
from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.kernels.interface.links import ONE_STAGE, StageLinks
from cadence.models.registry import AnyModel
from cadence.runner.caches.storage import allocate_kv_cache
from cadence.runner.features.setup import build_parts
from cadence.runner.limits import RunnerLimits
from cadence.runner.profile import dummy_plan, largest_step
from cadence.runner.runner import Runner
from cadence.runner.warmup import WarmupPiece, warmup_pieces
from cadence.speculate.choose import ProposerFactory, proposer_of

_NO_PAYLOADS = StepPayloads()
_NO_LIMIT = 2**31 - 1  # blocks of a device whose layers keep no keys


def _limits(config: WorkerConfig, num_stages: int, generates: bool) -> RunnerLimits:
    burst_steps = config.scheduler.burst_steps if num_stages == 1 else 1  # recorded as one: stages take turns instead
    return RunnerLimits(
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=config.model.max_model_len,
        max_num_tokens=config.scheduler.max_num_batched_tokens,
        logprobs_mode=config.model.logprobs_mode,
        graphs=config.device.graphs if generates else "none",
        burst_steps=burst_steps,
        max_encoder_len=config.scheduler.max_encoder_len,
        encoder_cache=config.scheduler.encoder_cache,
        longest_media=config.model.media.longest,
        dtype=config.model.dtype,
        speculative=config.speculative,
    )


class Worker:
    def __init__(
        self,
        device: Device,
        config: WorkerConfig,
        logits_processors: Sequence[Callable] = (),
        new_proposer: ProposerFactory = proposer_of,
        ranks: Collectives = ONE_RANK,
        links: StageLinks = ONE_STAGE,
        share: EngineShare | NoShare = NO_SHARE,
    ) -> None:
        """ranks: that share the layers of the model, this one among them. links: to the stages that have others. share:
        of experts that other engines have some of"""
        self._device, self._share = device, share
        self._cache = config.cache
        self._max_tokens = config.scheduler.max_num_batched_tokens
        self.queues_work = device.queues_work
        if config.device.sleep_mode:
            device.allow_sleep()
        with device.regions.region(WEIGHTS):
            loaded = load_models(device=device, config=config, ranks=ranks, links=links, share=share)
        self._lora = loaded.adapters
        self.layout = loaded.layout
        self._states, self._state_bytes = loaded.states, 0
        self._memory = 0  # bytes for states and keys, once that was looked at
        self.vocab_size = loaded.models.target.vocab_size
        self._generates = loaded.models.target.generates
        self._limits = _limits(config, links.count, self._generates)
        parts = build_parts(
            device=device,
            ops=loaded.ops,
            models=loaded.models,
            layout=loaded.layout,
            limits=self._limits,
            logits_processors=logits_processors,
            new_proposer=new_proposer,
        )
        self._loop = parts.loop
        self._runner = runner = Runner(parts)
        self.step, self.post, self.result = runner.step, runner.post, runner.result
        self.advance = share.around(runner.advance)
        # Until the real cache exists there is the null block alone: enough for dummy plans.
        self._allocate_kv(num_blocks=1)
        self._warmup: deque[WarmupPiece] = deque()  # what is left of it
        self._weights = weights = loaded.weights
        self._sleep = DeviceSleep(device, weights.droppable, runner.cache_memory, self._reload_weights)
        share.meet()

    @property
    def num_queued(self) -> int:
        """Parts that `result` has yet to give."""
        return self._runner.num_queued

    def check(self) -> None:
        """Nothing here can go by itself, but for other engines."""
        self._share.check()

    def get_model(self) -> AnyModel:
        return self._weights.model

    def busy_seconds(self) -> list[float]:
        return []

    def call(self, verb: Verb[P, A], payload: P) -> A:
        return self._HANDLERS[verb.name](self, payload)

    def stop(self) -> None:
        device = self._device
        device.synchronize()
        self._lora.close()
        self._warmup.clear()  # its pieces hold the loop, and with it the model
        del self.step, self.advance, self.post, self.result
        del self._sleep, self._weights, self._caches
        del self._runner, self._loop, self._device, self._lora  # with them the model, the KV cache, graphs and threads
        device.trim_memory()

    def run_dummy(
        self,
        counts: list[int],
        sampling: SamplingParams,
        num_computed: int = 0,
        payloads: StepPayloads = _NO_PAYLOADS,
    ) -> None:
        limits = self._limits
        sizes = limits.max_model_len, len(self.layout.groups)
        width = limits.width if self._generates else 0
        plan = dummy_plan(limits.dummy_row, counts, *sizes, sampling, width, num_computed)
        self._runner.step(replace(plan, payloads=payloads))
        self.advance(plan.step_id, 0, 1)
        self._runner.result()
        self._runner.vacate(limits.dummy_row)
        self._device.synchronize()

    def _state_room(self, _: None) -> StateRoom:
        if self._states.sizes is None:
            return NO_STATES
        return self._states.room(self._cache_bytes(), self._limits.max_num_seqs)

    def _allocate_states(self, room: StateRoom) -> None:
        """Before the KV cache, with which all that was recorded is forgotten."""
        self._state_bytes = self._states.bytes_of(room)
        for feature in self._runner.features.values():
            feature.allocate(room)

    def _kv_blocks(self, _: None) -> int:
        if not self.layout.block_bytes:
            return _NO_LIMIT
        return (self._cache_bytes() - self._state_bytes) // self.layout.block_bytes

    def _cache_bytes(self) -> int:
        """For states and keys, found before there are any."""
        self._memory = self._memory or self._free_bytes()
        return self._memory

    def _free_bytes(self) -> int:
        if self._cache.kv_cache_memory_bytes:
            return self._cache.kv_cache_memory_bytes
        used = self._lora.num_bytes + self._device.caps.total_memory - self._device.free_memory()
        self._device.reset_peak_memory()
        before = self._device.peak_memory()
        limits = self._limits
        counts = largest_step(self._max_tokens, limits.max_model_len, limits.max_num_seqs, limits.width)
        sampling = SamplingParams(temperature=1.0, top_p=0.9)
        self.run_dummy(counts, sampling, payloads=self._runner.largest_payloads())
        growth = self._device.peak_memory() - before
        share = int(self._device.caps.total_memory * self._cache.gpu_memory_utilization) - used
        left = share // self._device.num_sharers - growth
        if left <= 0:
            raise ConfigError(
                f"gpu_memory_utilization={self._cache.gpu_memory_utilization} leaves no memory for the KV cache: "
                f"the model and its largest step ({self._max_tokens} tokens) fill the share; raise it, or lower "
                "max_num_batched_tokens",
                field="gpu_memory_utilization",
            )
        return left

    def _allocate_kv(self, num_blocks: int) -> None:
        self._caches = allocate_kv_cache(self.layout, num_blocks, self._device)
        self._runner.use_caches(self._caches)

    def _warm_up(self, level: str) -> None:
        if level == "none":
            return
        pieces, largest = warmup_pieces(self.run_dummy, self._loop, self._limits), self._runner.largest_payloads()
        if pieces and largest:
            pieces.append(WarmupPiece(True, partial(self.run_dummy, [1], SamplingParams(), payloads=largest)))
        for piece in pieces:
            if piece.urgent or level == "full":
                piece.run()
            else:
                self._warmup.append(piece)

    def _warm_up_more(self, _: None) -> bool:
        if self._warmup:
            self._warmup.popleft().run()
        return bool(self._warmup)

    def _join_round(self, _: None) -> None:
        self.run_dummy([1], SamplingParams(temperature=0))

    def _prepare_adapter(self, path: str) -> None:
        self._lora.opened.prepare(path)

    def _prepared_adapters(self, _: None) -> list[AdapterOutcome]:
        return self._lora.opened.prepared()

    def _forget_adapter(self, digest: str) -> None:
        self._lora.opened.forget(digest)

    def _give_back_memory(self, level: int) -> None:
        self._sleep.give_back(level)

    def _take_back_memory(self, tag: str) -> None:
        self._sleep.take_back(tag)

    def _check_weights(self, state: WeightsState) -> None:
        self._weights.check(state)

    def _load_weights(self, state: WeightsState) -> None:
        self._device.synchronize()
        with torch.inference_mode():
            stayed = self._weights.load(state)
        self._forget_recorded(stayed)

    def _reload_weights(self) -> None:
        with torch.inference_mode():
            stayed = self._weights.reload()
        self._forget_recorded(stayed)

    def _forget_recorded(self, stayed: bool) -> None:
        """What was recorded holds the addresses of weights."""
        self._device.synchronize()
        if not stayed:
            self._runner.use_caches(self._caches)

    _HANDLERS: ClassVar[Mapping[str, Callable[[Worker, Any], Any]]] = {
        control.STATE_ROOM.name: _state_room,
        control.ALLOCATE_STATES.name: _allocate_states,
        control.KV_BLOCKS.name: _kv_blocks,
        control.ALLOCATE_KV.name: _allocate_kv,
        control.WARM_UP.name: _warm_up,
        control.WARM_UP_MORE.name: _warm_up_more,
        control.GIVE_BACK_MEMORY.name: _give_back_memory,
        control.TAKE_BACK_MEMORY.name: _take_back_memory,
        control.CHECK_WEIGHTS.name: _check_weights,
        control.LOAD_WEIGHTS.name: _load_weights,
        control.JOIN_ROUND.name: _join_round,
        control.PREPARE_ADAPTER.name: _prepare_adapter,
        control.PREPARED_ADAPTERS.name: _prepared_adapters,
        control.FORGET_ADAPTER.name: _forget_adapter,
    }
