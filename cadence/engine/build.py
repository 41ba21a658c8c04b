"""From options to a running engine, stage by stage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cadence.config.args import EngineArgs
from cadence.config.caps import Caps
from cadence.config.engine_config import EngineConfig, ModelConfig
from cadence.config.files.implementation import AUTO
from cadence.config.resolve.generation import default_sampling
from cadence.config.resolve.resolve import fit_context, idle_options
from cadence.config.resolve.states import fit_states
from cadence.core.contract.control import (
    ALLOCATE_KV,
    ALLOCATE_STATES,
    KV_BLOCKS,
    RESET_ENCODER_CACHE,
    STATE_ROOM,
    WARM_UP,
)
from cadence.core.model.kv_spec import KVLayout
from cadence.core.model.state_spec import StateRoom
from cadence.core.sampling_params import is_on_device
from cadence.engine.adapter_preparer import AdapterPreparer, Call
from cadence.engine.any_core import AnyCore
from cadence.engine.core import EngineCore
from cadence.engine.grammar_preparer import GrammarPreparer
from cadence.engine.intake import Intake
from cadence.engine.sleeping import EngineSleep
from cadence.engine.source import ModelSource, check_vocabulary, find_source
from cadence.engine.text.input_limits import InputLimits
from cadence.executor.factory import ExecutorFactory, device_caps, open_executor
from cadence.scheduler.budget import RunLimits, TokenBudget
from cadence.scheduler.feature import HostFeature
from cadence.scheduler.features.adapters.slots import AdapterSlots
from cadence.scheduler.features.alignment.feature import AlignedRequests
from cadence.scheduler.features.drafts.feature import HostDrafts
from cadence.scheduler.features.drafts.policy import DraftPolicy
from cadence.scheduler.features.encoder.feature import EncoderContents
from cadence.scheduler.features.grammar.feature import GrammarOutputs
from cadence.scheduler.features.host_bound import HostBound
from cadence.scheduler.features.media.cache import EncoderCache
from cadence.scheduler.features.media.feature import MediaContents
from cadence.scheduler.features.pooling.feature import PooledRequests
from cadence.scheduler.features.states.feature import StateSnapshots
from cadence.scheduler.features.states.held import HeldStates
from cadence.scheduler.features.states.snapshots import Snapshots
from cadence.scheduler.kv.sizing import max_len_that_fits
from cadence.scheduler.scheduler import Scheduler
from cadence.text.null_tokenizer import AnyTokenizer

if TYPE_CHECKING:
    from cadence.structured.service import GrammarService

logger = logging.getLogger("cadence.engine")


@dataclass(frozen=True, slots=True)
class EngineParts:
    config: EngineConfig
    core: AnyCore
    tokenizer: AnyTokenizer
    vocab_size: int
    num_blocks: int
    caps: Caps
    device_name: str
    default_sampling: dict[str, Any]


def build_engine(
    args: EngineArgs,
    logits_processors: Sequence[Callable[..., Any]] = (),
    *,
    offline: bool = False,
    holds_text: bool = True,
    new_executor: ExecutorFactory = open_executor,
) -> EngineParts:
    """Loads tokenizer and weights side by side, sizes the KV cache, and ties scheduler and executor together.

    offline: as `ResolveInputs` has it. holds_text: without, text is another process's, and a tokenizer is loaded for
    the first grammar alone.
    """
    source = _named_source(args)

    def resolve(caps: Caps) -> EngineConfig:
        _name_idle_options(args, caps.kind)
        return source.resolve(args, caps, offline)

    with ThreadPoolExecutor(1) as pool:
        tokenizer_job = pool.submit(source.load_tokenizer, args.skip_tokenizer_init or not holds_text)
        opened = new_executor(args.device, resolve, logits_processors)
        tokenizer = tokenizer_job.result()
    check_vocabulary(tokenizer, opened.vocab_size)
    call, layout = opened.executor.call, opened.layout
    config, states = _with_states(opened.config, call)
    num_blocks = _num_blocks(config, layout, call)
    config = fit_context(config, args, _longest_request(config, layout, num_blocks))
    slots, encoded = AdapterSlots(config.scheduler.adapter_slots), EncoderCache(config.scheduler.encoder_cache)
    features = _features(config, layout, slots, encoded, logits_processors, states)
    scheduler = _scheduler(config, layout, num_blocks, features, _runs(config, bool(states.rows)))
    call(ALLOCATE_KV, num_blocks)
    call(WARM_UP, config.device.warmup)
    load = (lambda: tokenizer) if holds_text else partial(source.load_tokenizer, args.skip_tokenizer_init)
    grammars = GrammarPreparer(partial(_grammar_service, load, opened.vocab_size, config.model))
    adapters = AdapterPreparer(call, config.lora.max_cpu_loras, slots)
    intake = Intake([grammars, adapters], adapters.handlers())
    core = EngineCore(scheduler, opened.executor, intake, config.scheduler.steps_in_flight, opened.queues_work)
    _add_verbs(core, encoded)
    return EngineParts(
        config=config,
        core=core,
        tokenizer=tokenizer,
        vocab_size=opened.vocab_size,
        num_blocks=num_blocks,
        caps=opened.caps,
        device_name=opened.caps.name,
        default_sampling=default_sampling(args, config.model.hf),
    )


def _add_verbs(core: EngineCore, encoded: EncoderCache) -> None:
    """Those that are carried out beside the loop."""
    core.handle(RESET_ENCODER_CACHE, encoded.forget)
    EngineSleep(core)


def _with_states(config: EngineConfig, call: Call) -> tuple[EngineConfig, StateRoom]:
    """What rows keep beside keys has its memory before the KV cache gets the rest."""
    room: StateRoom = call(STATE_ROOM, None)
    if room.rows:
        call(ALLOCATE_STATES, room)
    return fit_states(config, room), room


def _num_blocks(config: EngineConfig, layout: KVLayout, call: Call) -> int:
    """Without attention there is the null block alone."""
    if not layout.groups:
        return 1
    return config.cache.num_blocks_override or call(KV_BLOCKS, None)


def _scheduler(
    config: EngineConfig, layout: KVLayout, num_blocks: int, features: Sequence[HostFeature], runs: RunLimits
) -> Scheduler:
    return Scheduler(
        config=config.scheduler,
        cache=config.cache,
        layout=layout,
        num_blocks=num_blocks,
        max_model_len=config.model.max_model_len,
        features=features,
        runs=runs,
    )


def _grammar_service(
    load_tokenizer: Callable[[], AnyTokenizer], vocab_size: int, model: ModelConfig, on_ready: Callable[[], None]
) -> GrammarService:
    from cadence.structured.service import GrammarService  # needs packages that engines without grammars do without
    from cadence.structured.vocabulary import Vocabulary

    def load() -> tuple[Vocabulary, Callable[[bytes], list[int]]]:
        tokenizer = load_tokenizer().loaded()
        stop_ids = InputLimits.of(model, vocab_size, tokenizer).eos_token_ids

        def encode(text: bytes) -> list[int]:
            return tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False)

        return Vocabulary.of(tokenizer, vocab_size, stop_ids), encode

    return GrammarService(load, on_ready=on_ready)


def resolved_config(args: EngineArgs) -> EngineConfig:
    """What an `LLM` object of these options would run with, without loading weights."""
    return find_source(args).resolve(args, device_caps(args.device), offline=True)


def _named_source(args: EngineArgs) -> ModelSource:
    """With a line in the log where nobody asked for transformers' code, and it is what computes."""
    source = find_source(args)
    if source.hf.implementation.through_transformers and args.model_impl == AUTO:
        logger.warning("no file of ours computes %s: it runs through transformers' own code", source.hf.architecture)
    return source


def _name_idle_options(args: EngineArgs, kind: str) -> None:
    if idle := idle_options(args, kind):
        where = {"cpu": "a CPU", "cuda": "a GPU"}[kind]
        logger.warning("on %s these options have no effect: %s", where, ", ".join(idle))


def _longest_request(config: EngineConfig, layout: KVLayout, num_blocks: int) -> int:
    upper = config.model.max_model_len
    budget = TokenBudget.of(config.scheduler, upper, _runs(config))
    return max_len_that_fits(layout, num_blocks, budget.in_flight, upper, config.scheduler.max_encoder_len)


def _runs(config: EngineConfig, has_states: bool = False) -> RunLimits:
    most, by_model = config.speculative.num_tokens, config.speculative.by_model
    return RunLimits(1 + most, most if by_model else 0, config.device.graphs == "padded", strict=has_states)


def _states(config: EngineConfig, layout: KVLayout, room: StateRoom) -> HostFeature:
    if not config.cache.enable_prefix_caching:
        return HeldStates(room.rows)
    return StateSnapshots(Snapshots(room.snapshots), layout.block_size, num_rows=room.rows)


def _features(
    config: EngineConfig,
    layout: KVLayout,
    slots: AdapterSlots,
    encoded: EncoderCache,
    logits_processors: Sequence[Callable[..., Any]],
    states: StateRoom,
) -> list[HostFeature]:
    """All that the scheduler has beside itself, in the order in which they are asked."""
    features: list[HostFeature] = []
    if not all(map(is_on_device, logits_processors)):
        features.append(HostBound())
    if slots.count:
        features.append(slots)
    if states.rows:
        features.append(_states(config, layout, states))
    if config.scheduler.max_encoder_len:
        budget = config.scheduler.max_num_encoder_tokens
        features.append(EncoderContents(layout.groups, budget, slots.slot_of))
        features.append(AlignedRequests())
    if config.scheduler.encoder_cache:
        ahead = int(config.speculative.by_head)
        features.append(MediaContents(encoded, config.scheduler.max_num_encoder_tokens, ahead))
    if config.speculative.enabled:
        num_rows = config.scheduler.max_num_seqs
        features.append(HostDrafts(_draft_policy(config, num_rows), num_rows))
    return [*features, GrammarOutputs(), PooledRequests()]


def _draft_policy(config: EngineConfig, num_rows: int) -> DraftPolicy:
    asked, padded = config.speculative, config.device.graphs == "padded"
    falls_behind = asked.method == "draft_model"  # heads keep up by themselves
    return DraftPolicy(asked.num_tokens, num_rows, asked.adaptive, padded, asked.by_model, falls_behind)
