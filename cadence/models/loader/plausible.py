"""Whether a model can be what its configuration says, seen before anything is allocated for it."""

from __future__ import annotations

from dataclasses import replace

import torch

from cadence.config.hf import HFConfig
from cadence.core.errors import ConfigError, ModelFileError
from cadence.models.headed import headed_model
from cadence.models.interface.build import BuildContext
from cadence.models.loader.assign import check_fit
from cadence.models.loader.slots import slots
from cadence.models.loader.source import WeightsSource
from cadence.models.registry import AnyModel

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
_HIDDEN, _INNER = ("hidden_size", "n_embd", "dim"), ("intermediate_size", "ffn_dim", "hidden_dim", "n_inner")
_SIZES = (*_LAYERS, *_HIDDEN, *_INNER, "vocab_size", "head_dim")
_WEIGHT_BYTES = {"int4": 0.5, "int8": 1.0}  # by quantization; others hold the model's type, or less
_LEAST_TENSORS = 2  # of a layer


def build_model(hf: HFConfig, build: BuildContext) -> AnyModel:
    """The architecture the configuration names. What is wrong with its sizes is said of its file."""
    try:
        return headed_model(hf, build)
    except ModelFileError:
        raise
    except ConfigError as error:
        raise ModelFileError(f"{hf.source}: {error}", error.field) from None


def check_source(hf: HFConfig, build: BuildContext, source: WeightsSource, where: str) -> None:
    """Weights that are there and are all those the configuration speaks of, in their shapes."""
    field = next((name for name in _LAYERS if name in hf.raw), "")
    count = len(source.names())
    if field and hf[field] * _LEAST_TENSORS > count:
        message = f"{hf.source}: {field!r} is {hf[field]}, but {where} holds {count} tensors in all"
        raise ModelFileError(message, field)
    check_fit(without_memory(hf, build), source, where)


def check_dummy(hf: HFConfig, build: BuildContext, quantization: str) -> None:
    """Weights made up to measure with take what the configuration says."""
    each = _WEIGHT_BYTES.get(quantization, build.dtype.itemsize)
    needed = sum(slot.tensor.numel() for slot in slots(without_memory(hf, build))) * each
    if needed > build.memory:
        sizes = ", ".join(f"{name}={hf[name]}" for name in _SIZES if name in hf.raw)
        gib = f"{needed / 2**30:.1f} GiB of weights, but the device has {build.memory / 2**30:.1f} GiB of memory"
        raise ModelFileError(f"{hf.source}: {sizes} are {gib}", field="hidden_size")


def without_memory(hf: HFConfig, build: BuildContext, positions: int = 1) -> AnyModel:
    """The model with shapes and no memory; of one position, since its tables do not depend on the weights. Windows that
    no sequence outgrows are none: who asks for those says how many positions there are."""
    return build_model(hf, replace(build, device=torch.device("meta"), max_model_len=positions))
