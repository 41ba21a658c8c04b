"""Which tensors of a checkpoint are quantised, and which modules are named as left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.config.files.module_names import ModuleNames
from cadence.config.hf import HFConfig
from cadence.config.quantized import TRANSPOSED, read_quantized
from cadence.core.errors import ConfigError
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.build import BuildContext
from cadence.models.layers.embedding import LMHead
from cadence.models.layers.experts import ExpertRouter
from cadence.models.layers.linear import Linear
from cadence.models.loader.assign import Copy, Plan, check_fit
from cadence.models.loader.model_weights import model_weights
from cadence.models.loader.plausible import without_memory
from cadence.models.loader.source import WeightsSource
from cadence.models.quantize.formats import WeightFormat, fitting_group
from cadence.models.quantize.matrix import check_shape

HEAD = "lm_head"
_SUFFIX = ".weight"


@dataclass(frozen=True, slots=True)
class Selection:
    form: WeightFormat  # with a group that divides
    quantized: tuple[tuple[str, ...], ...]  # tensors, those together that are multiplied as one matrix
    left_out: tuple[str, ...]  # Linear modules that keep their values, and routers of experts


def select(hf: HFConfig, source: WeightsSource, where: str, form: WeightFormat, ignore: tuple[str, ...]) -> Selection:
    """ignore: modules by name, or `re:` patterns. What cannot be quantised is refused before anything is written."""
    _check_kind(hf, where)
    build = BuildContext(torch.float32, torch.device("meta"), ReferenceOps(), 1)
    plan = check_fit(without_memory(hf, build), model_weights(source, hf, build), where)
    linears = [copy for copy in plan.copies if _is_linear(copy)]
    names = [_module(copy) for copy in linears]
    ignored = _ignored(names, ignore)
    groups: dict[int, list[Copy]] = {}
    for copy in linears:
        groups.setdefault(id(copy.slot), []).append(copy)
    taken = [group for group in groups.values() if not _all_ignored(group, ignored)]
    shapes = {copy.name: tuple(source.shape(copy.name)) for group in taken for copy in group}
    form = fitting_group(form, (shape[-1] for shape in shapes.values() if shape))
    for name, shape in shapes.items():
        check_shape(name, shape, form)
    if not taken:
        raise ConfigError("ignore: nothing is left to quantise", "ignore")
    routers = {_module(copy) for copy in plan.copies if isinstance(copy.slot.module, ExpertRouter)}
    left_out = sorted(ignored | ({HEAD} - set(names)) | routers | _others(source, plan))
    return Selection(form, tuple(tuple(copy.name for copy in group) for group in taken), tuple(left_out))


def _check_kind(hf: HFConfig, where: str) -> None:
    if read_quantized(hf) is not None:
        message = f"{where}: its weights are quantised already; take the checkpoint that it was made of"
        raise ConfigError(message, "model")
    if hf.family in TRANSPOSED:
        raise ConfigError(f"{where}: matrices of {hf.architecture} lie transposed, and are not quantised", "model")


def _is_linear(copy: Copy) -> bool:
    """A matrix that a Linear multiplies by, or an untied head."""
    holders = copy.slot.holders
    tied = len(holders) > 1
    return bool(holders) and copy.name.endswith(_SUFFIX) and not tied and isinstance(holders[0], Linear | LMHead)


def _others(source: WeightsSource, plan: Plan) -> set[str]:
    """Modules of the checkpoint that are not the model's, as heads that draft are: they keep their values."""
    left = [name for name in source.names() if name not in plan.used and name.endswith(_SUFFIX)]
    return {name.removesuffix(_SUFFIX) for name in left if len(source.shape(name)) == 2}


def _ignored(names: list[str], ignore: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    for text in ignore:
        try:
            pattern = ModuleNames.of((text,), exact=True)
        except ValueError as error:
            raise ConfigError(f"ignore: {error}", "ignore") from None
        own = {name for name in names if pattern.names(name)}
        if not own and text != HEAD:
            message = f"ignore: {text!r} names no matrix of this model, whose matrices are {names[0]!r} and the like"
            raise ConfigError(f"{message}; patterns begin with re:", "ignore")
        found |= own
    return found


def _all_ignored(group: list[Copy], ignored: set[str]) -> bool:
    """Parts that are multiplied as one matrix are all quantised, or none of them."""
    parts = [_module(copy) for copy in group]
    if len({part in ignored for part in parts}) > 1:
        raise ConfigError(f"ignore: {', '.join(parts)} are multiplied as one: name all of them, or none", "ignore")
    return parts[0] in ignored


def _module(copy: Copy) -> str:
    return copy.name.removesuffix(_SUFFIX)
