"""Loads what one device has of a model: its layers, a model that drafts, adapters, and where their keys lie."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cadence.config.speculative import NO_SPECULATION
from cadence.core.model.kv_spec import KVLayout, plan_layout
from cadence.device.base import Device
from cadence.device.dtypes import DTYPES
from cadence.executor.worker.adapters import WorkerAdapters, open_adapters
from cadence.executor.worker.engine_share import EngineShare, NoShare
from cadence.executor.worker.stage_facts import DraftFacts, share_facts
from cadence.executor.worker.state_memory import StateMemoryPlan
from cadence.executor.worker.weights import DeviceWeights
from cadence.executor.worker.worker_config import WorkerConfig
from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.kernels.interface.links import StageLinks
from cadence.kernels.interface.ops import Ops
from cadence.kernels.select import select_ops
from cadence.models.interface.build import BuildContext
from cadence.models.interface.stage import ALL_LAYERS, Stage
from cadence.models.loader.load import load_model
from cadence.models.loader.plausible import without_memory
from cadence.models.stage import balanced_partition
from cadence.runner.caches.states import StateSizes
from cadence.runner.features.setup import LoadedModels
from cadence.speculate.draft_model import DraftModel
from cadence.speculate.load import load_draft


@dataclass(frozen=True, slots=True)
class WorkerModels:
    ops: Ops
    models: LoadedModels
    adapters: WorkerAdapters
    layout: KVLayout  # of the layers that are here
    states: StateMemoryPlan
    weights: DeviceWeights


def load_models(
    device: Device, config: WorkerConfig, ranks: Collectives, links: StageLinks, share: EngineShare | NoShare
) -> WorkerModels:
    """All ranks and stages call it together. The parameters are those of `Worker`."""
    ops = _ops(config, device)
    whole = _whole(config, device, ops, ranks, share)
    stage = _stage(config, whole, links)
    target = load_model(config.model, config.load, replace(whole, stage=stage))
    all_layers = target if stage.is_all else without_memory(config.model.hf, whole, config.model.max_model_len)
    draft = load_draft(
        speculative=config.speculative if links.is_last else NO_SPECULATION,
        target_config=config.model,
        load=config.load,
        build=replace(whole, expert_ranks=ONE_RANK),
        target=target,
    )
    facts = share_facts(links, DraftFacts(draft.kv_layers(), draft.aux_layers), device.torch_device)
    adapters = open_adapters(target, config.lora, device, whole, all_layers)
    of_target = all_layers.kv_layers()
    layers = [*of_target, *facts.kv_layers]
    own = [*target.own_layers, *(range(len(of_target), len(layers)) if links.is_last else ())]
    sizes = None
    if all_layers.state_layers():
        sizes = StateSizes(target.state_layers(), whole.dtype, config.speculative.num_tokens, draft.state_layers)
    models = LoadedModels(
        target=target,
        draft=draft,
        adapters=adapters.store,
        links=links,
        aux_layers=facts.aux_layers,
        ranks=ranks,
        states=sizes,
    )
    layout = plan_layout(layers, config.cache.block_size, config.cache.dtype).of_layers(own)
    plan = StateMemoryPlan(sizes, has_keys=bool(layers), caching=config.cache.enable_prefix_caching)
    head = draft.proposer if config.speculative.method == "mtp" and isinstance(draft, DraftModel) else None
    weights = DeviceWeights(target, config.model, config.load, replace(whole, stage=stage), head)
    return WorkerModels(ops=ops, models=models, adapters=adapters, layout=layout, states=plan, weights=weights)


def _whole(
    config: WorkerConfig, device: Device, ops: Ops, ranks: Collectives, share: EngineShare | NoShare
) -> BuildContext:
    """What all layers of the model would be built with here."""
    return BuildContext(
        dtype=DTYPES[config.model.dtype],
        device=device.torch_device,
        ops=ops,
        max_model_len=config.model.max_model_len,
        memory=device.caps.total_memory,
        ranks=ranks,
        expert_ranks=ranks if config.load.whole_experts and ranks.size > 1 else share.engines,
    )


def _ops(config: WorkerConfig, device: Device) -> Ops:
    return select_ops(
        device,
        name=config.device.kernels,
        deterministic=config.device.deterministic,
        cpu_isa=config.device.cpu_isa,
        packs=config.load.quantization != "none",
    )


def _stage(config: WorkerConfig, whole: BuildContext, links: StageLinks) -> Stage:
    """Which layers are here. whole: what all of the model would be built with"""
    if links.count == 1:
        return ALL_LAYERS
    model = without_memory(config.model.hf, whole)
    partition = config.load.stage_layers or balanced_partition(model, links.count)
    return Stage(links, partition, keeps_embedding=config.speculative.by_model)
