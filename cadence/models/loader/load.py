"""From resolved configuration to a model ready to run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.files.sharded_state import SHARDED
from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.models.interface.build import BuildContext
from cadence.models.interface.stage import ALL_LAYERS
from cadence.models.layers.derived import derived
from cadence.models.layers.joined import joined
from cadence.models.loader.assign import Progress, assign, copies_of, no_progress
from cadence.models.loader.checkpoint import open_checkpoint
from cadence.models.loader.dummy import fill_dummy
from cadence.models.loader.fp8_values import Float8Packer
from cadence.models.loader.head_weights import with_head_weights
from cadence.models.loader.kv_scales import hold_kv_scales
from cadence.models.loader.model_weights import model_weights
from cadence.models.loader.packing import MatrixPacking, NoPacking, Packing
from cadence.models.loader.plausible import build_model, check_dummy, check_source, without_memory
from cadence.models.loader.selected_weights import SelectedWeights
from cadence.models.loader.sharded_state import ShardWeights
from cadence.models.loader.sliced_weights import sliced
from cadence.models.loader.source import KVScales, WeightsSource
from cadence.models.registry import AnyModel
from cadence.models.stage import as_stage


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """What fills a model, of which this rank and stage have a part."""

    source: WeightsSource  # of this rank
    where: str  # it is, for messages
    kv_scales: KVScales


def load_model(model_config: ModelConfig, load_config: LoadConfig, build: BuildContext) -> AnyModel:
    """Builds the architecture the configuration names and fills it. The result implements `CausalLM`."""
    packing = new_packing(load_config.quantization, build)
    if load_config.load_format == "dummy":
        check_dummy(model_config.hf, build, load_config.quantization)
        model = _built(model_config, build)
        fill_dummy(model, model_config.seed, packing)
        return joined(derived(model), build.ranks)
    weights = open_model_weights(model_config, load_config, build)
    model = _built(model_config, build)
    progress = _progress if load_config.use_tqdm and sys.stderr.isatty() else no_progress
    fill(model, weights, build, packing, progress)
    return joined(model, build.ranks)


def open_model_weights(model_config: ModelConfig, load_config: LoadConfig, build: BuildContext) -> ModelWeights:
    """Checked by what the files say of their tensors."""
    source, where = open_weights(model_config, load_config, build.ranks)
    scales = source.kv_scales()
    whole = replace(build, stage=ALL_LAYERS)
    source = model_weights(source, model_config.hf, whole)
    if load_config.load_format != SHARDED:
        source = with_head_weights(source, model_config.files, model_config.hf)
    own = source if load_config.load_format == SHARDED else sliced(source, without_memory(model_config.hf, whole))
    _check(model_config, whole, own if not build.whole_experts else source, where)
    return ModelWeights(own, where, scales)


def fill(
    model: AnyModel, weights: ModelWeights, build: BuildContext, packing: Packing, progress: Progress = no_progress
) -> None:
    """Also one that was filled before, where its weights lie."""
    assign(model, _own_part(weights.source, model, build), weights.where, progress, packing)
    hold_kv_scales(model, weights.kv_scales)
    derived(model)


def _built(model_config: ModelConfig, build: BuildContext) -> AnyModel:
    return as_stage(build_model(model_config.hf, build), build.stage, build.dtype)


def _check(model_config: ModelConfig, whole: BuildContext, source: WeightsSource, where: str) -> None:
    """That the source has all of the model, those of its experts that other ranks have among it."""
    one = replace(whole, ranks=ONE_RANK, expert_ranks=ONE_RANK) if whole.whole_experts else whole
    check_source(model_config.hf, one, source, where)


def _own_part(source: WeightsSource, model: AnyModel, build: BuildContext) -> WeightsSource:
    """What fills the layers and experts that are here."""
    if build.stage.is_all and not build.whole_experts:
        return source
    return SelectedWeights.named(source, {copy.name for copy in copies_of(model, source)})


def new_packing(quantization: str, build: BuildContext) -> Packing:
    packer = build.ops.packer(quantization, build.dtype, build.device)
    if packer is None:
        return NoPacking()
    on_cpu = quantization == "fp8" and build.device.type == "cpu"
    return MatrixPacking(Float8Packer(packer) if on_cpu else packer)


def open_weights(model_config: ModelConfig, load_config: LoadConfig, ranks: Collectives) -> tuple[WeightsSource, str]:
    """(all tensors, where they are); of sharded state, those of this rank"""
    files = model_config.files
    if load_config.load_format == SHARDED:
        return ShardWeights(files.directory, ranks.rank, ranks.size), str(files.directory)
    return open_checkpoint(files, model_config.hf)


def _progress(done: Iterable[None], total: int) -> Iterable[None]:
    try:
        from tqdm import tqdm
    except ImportError:
        return done
    return tqdm(done, total=total, desc="Loading weights", unit="tensor", leave=False)
