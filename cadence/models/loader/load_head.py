"""From a head's files, or the target's own, to a proposer ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.reference import ModelFiles
from cadence.core.errors import ConfigError, ModelFileError
from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.models.decoder import DecoderLM
from cadence.models.heads.config import read_head_config
from cadence.models.heads.eagle import build_eagle
from cadence.models.heads.eagle3 import Eagle3Head, build_eagle3
from cadence.models.heads.fusion import FusionHead
from cadence.models.heads.head_build import FIELD, HeadBuild
from cadence.models.heads.medusa import MedusaHead, build_medusa
from cadence.models.heads.mtp import build_mtp, mtp_prefixes
from cadence.models.interface.build import BuildContext
from cadence.models.loader.assign import assign, check_fit
from cadence.models.loader.dummy import fill_dummy
from cadence.models.loader.load import new_packing, open_weights
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from cadence.models.loader.selected_weights import SelectedWeights
from cadence.models.loader.source import WeightsSource
from cadence.models.loader.torch_weights import TorchWeights, saved_files

HEADS = ("eagle", "eagle3", "medusa", "mtp")
Head = FusionHead | Eagle3Head | MedusaHead  # each implements `ModelProposer`
NewHead = Callable[[HeadBuild], Head]


@dataclass(frozen=True, slots=True)
class HeadSource:
    """Which head, and whose."""

    method: str  # one of HEADS
    files: ModelFiles  # of the head; not looked at where it is part of the target's
    target: DecoderLM
    target_config: ModelConfig
    ranks: Collectives = ONE_RANK  # that share the target's layers, and may each have files of their own


def load_head(source: HeadSource, load_config: LoadConfig, build: BuildContext) -> Head:
    """What does not fit is said in one message, before anything is allocated. With dummy weights it shares the target's
    embedding and head."""
    new_head = _builder(source)
    packing = new_packing(_quantization(source.method, load_config.quantization), build)
    if load_config.load_format == "dummy":
        head = _build(new_head, HeadBuild(build, source.target, _Dummy(source.method), "a dummy head"))
        fill_dummy(head, source.target_config.seed, packing)
        return head
    weights, where = _open(source, load_config)
    on_meta = replace(build, device=torch.device("meta"), max_model_len=1)
    check_fit(_build(new_head, HeadBuild(on_meta, source.target, weights, where)), weights, where)
    head = _build(new_head, HeadBuild(build, source.target, weights, where))
    assign(head, weights, where, packing=packing)
    return head


def _quantization(method: str, of_target: str) -> str:
    """Files of heads hold values. Beside a target that is multiplied in its file's blocks, they are packed in 8 bits: a
    draft that differs for it costs an acceptance, not a token."""
    return "int8" if of_target in ("gguf", "checkpoint") and method != "mtp" else of_target


def _builder(source: HeadSource) -> NewHead:
    if source.method == "mtp":
        return partial(build_mtp, source.target_config.hf)
    if source.method == "medusa":
        return build_medusa
    if source.method not in HEADS:
        raise ConfigError(f"{source.method!r} is not one of {', '.join(HEADS)}", FIELD)
    return partial(build_eagle if source.method == "eagle" else build_eagle3, read_head_config(source.files))


def _build(new_head: NewHead, head: HeadBuild) -> Head:
    try:
        return new_head(head)
    except ModelFileError:
        raise
    except ConfigError as error:
        message = str(error)
        raise ModelFileError(message if head.where in message else f"{head.where}: {message}", error.field) from None


def _open(source: HeadSource, load_config: LoadConfig) -> tuple[WeightsSource, str]:
    if source.method == "mtp":
        weights, where = open_weights(source.target_config, load_config, source.ranks)
        return SelectedWeights(weights, only=mtp_prefixes(source.target_config.hf)), where
    directory = source.files.directory
    if saved := saved_files(directory):
        return TorchWeights(saved), str(saved[0])
    return SafetensorsWeights(directory), str(directory)


_DUMMIES = {"mtp": ["mtp.fc.weight"], "medusa": [f"blocks.{index}.layers.0.weight" for index in range(4)]}


class _Dummy:
    """Names of tensors that make a head of the usual size."""

    def __init__(self, method: str) -> None:
        self._names = _DUMMIES.get(method, [])

    def names(self) -> list[str]:
        return self._names

    def load(self, name: str) -> torch.Tensor:
        raise KeyError(name)
