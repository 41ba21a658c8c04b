"""From resolved configuration to a model ready to run."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.sharded_state import SHARDED
from cadence.kernels.interface.collectives import Collectives
from cadence.models.decoder import DecoderLM
from cadence.models.heads.mtp import mtp_prefixes
from cadence.models.interface.build import BuildContext
from cadence.models.layers.joined import joined
from cadence.models.loader.assign import assign, no_progress
from cadence.models.loader.checkpoint import open_checkpoint
from cadence.models.loader.dummy import fill_dummy
from cadence.models.loader.packing import MatrixPacking, NoPacking, Packing
from cadence.models.loader.plausible import build_model, check_dummy, check_source, without_memory
from cadence.models.loader.selected_weights import SelectedWeights
from cadence.models.loader.sharded_state import ShardWeights
from cadence.models.loader.sliced_weights import sliced
from cadence.models.loader.source import WeightsSource


def load_model(model_config: ModelConfig, load_config: LoadConfig, build: BuildContext) -> DecoderLM:
    """Builds the architecture the configuration names and fills it. The result implements `CausalLM`."""
    packing = new_packing(load_config.quantization, build)
    if load_config.load_format == "dummy":
        check_dummy(model_config.hf, build, load_config.quantization)
        model = build_model(model_config.hf, build)
        fill_dummy(model, model_config.seed, packing)
        return joined(model, build.ranks)
    source, where = open_weights(model_config, load_config, build.ranks)
    source = SelectedWeights(source, without=mtp_prefixes(model_config.hf))
    if build.ranks.size > 1 and load_config.load_format != SHARDED:
        source = sliced(source, without_memory(model_config.hf, build))
    check_source(model_config.hf, build, source, where)
    model = build_model(model_config.hf, build)
    progress = _progress if load_config.use_tqdm and sys.stderr.isatty() else no_progress
    assign(model, source, where, progress, packing)
    return joined(model, build.ranks)


def new_packing(quantization: str, build: BuildContext) -> Packing:
    packer = build.ops.packer(quantization, build.dtype)
    return NoPacking() if packer is None else MatrixPacking(packer)


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
