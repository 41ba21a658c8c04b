"""A quantised checkpoint as an unquantised one would be: `NAME.weight` for the tensors that a matrix is stored in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.config.files.module_names import MOST_NAME
from cadence.config.files.stored_as import QuantizedFormat
from cadence.core.errors import WeightsError
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.loader.kv_scales import read_kv_scales
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from cadence.models.loader.source import KVScales
from cadence.models.quant.matrix import StoredMatrix
from cadence.models.quant.read import read_matrix
from cadence.models.quant.tensors import ModuleTensors

# What follows a module's name. A module with one of _MARKS is quantised; _OF_WEIGHT are its tensors beside these.
_BNB_STATE = "weight.quant_state.bitsandbytes__"
_MARKS = (
    "weight_packed", "qweight", "weight_scale", "weight_scale_inv", "SCB", f"{_BNB_STATE}nf4", f"{_BNB_STATE}fp4",
)  # fmt: skip
_OF_WEIGHT = (
    "weight", "weight_zero_point", "weight_g_idx", "weight_shape", "weight_global_scale",
    "qzeros", "scales", "g_idx",
    "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
)  # fmt: skip
# Of activations, which are not rounded as the checkpoint's author had it, and of caches: `kv_scales` has some of them.
_UNUSED = (
    "input_scale", "input_zero_point", "input_global_scale", "input_g_idx", "output_scale", "output_zero_point",
    "activation_scale", "weight_format", "k_scale", "v_scale", "q_scale", "prob_scale", "k_zero_point", "v_zero_point",
)  # fmt: skip
_VALUES = ("F64", "F32", "F16", "BF16", "I64")


class QuantizedWeights:
    """A `WeightsSource`. Headers are looked at as it is made, matrices when they are asked for."""

    def __init__(self, stored: SafetensorsWeights, quantized: QuantizedFormat, dtype: torch.dtype, where: str) -> None:
        """dtype: of the values that were quantised; what comes out in float32 is rounded to it"""
        self._stored = stored
        self._dtype = dtype
        self._where = where
        self._matrices: dict[str, StoredMatrix] = {}  # by the name of what they are
        self._parts: dict[str, tuple[str, ...]] = {}  # tensors of these
        modules = self._modules()
        held = {name for parts in modules.values() for name in parts.values()}
        for module, parts in modules.items():
            self._add(module, parts, quantized)
        plain = [name for name in stored.names() if name not in held and not _ends(name, _UNUSED)]
        for name in plain:
            if stored.stored_type(name) not in _VALUES:
                kind = stored.stored_type(name)
                raise WeightsError(f"{where}: tensor {name!r} has type {kind}, and nothing says how it is quantised")
        self._names = self._in_order(plain)

    def names(self) -> Sequence[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._matrices[name].shape if name in self._matrices else self._stored.shape(name)

    def load(self, name: str) -> torch.Tensor:
        if name not in self._matrices:
            return self._stored.load(name)
        values = self._matrices[name].values()
        return values.to(self._dtype) if values.dtype is torch.float32 else values

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        return None if transposed or name not in self._matrices else self._matrices[name].blocks()

    def numbers(self, name: str) -> ScaledNumbers | None:
        return self._matrices[name].numbers() if name in self._matrices else None

    def order(self, name: str) -> torch.Tensor | None:
        return self._matrices[name].order() if name in self._matrices else None

    def release(self, name: str) -> None:
        for each in self._parts.get(name, (name,)):
            self._stored.release(each)

    def kv_scales(self) -> KVScales:
        return read_kv_scales(self._stored.names(), self._stored.load)

    def zero_biases(self) -> tuple[str, ...]:
        """Biases of quantised modules that are zero: some writers add them to every module."""
        biases = [f"{name.removesuffix('.weight')}.bias" for name in self._matrices]
        held = set(self._names)
        return tuple(name for name in biases if name in held and not self._stored.load(name).any())

    def _modules(self) -> dict[str, dict[str, str]]:
        """Quantised ones -> their tensors, by what follows the module's name."""
        found: dict[str, dict[str, str]] = {}
        names = self._stored.names()
        for name in names:
            if (part := _ends(name, _MARKS)) is not None:
                found.setdefault(name[: -len(part) - 1], {})[part] = name
        for name in names:
            part = _ends(name, _OF_WEIGHT)
            if part is not None and (module := name[: -len(part) - 1]) in found:
                found[module][part] = name
        return found

    def _add(self, module: str, parts: dict[str, str], quantized: QuantizedFormat) -> None:
        mark = next(iter(parts.values()))
        if len(module) > MOST_NAME:
            raise WeightsError(f"{self._where}: tensor {mark[:MOST_NAME]!r}…: its name is too long")
        scheme = quantized.stored_as(module)
        if scheme is None:
            message = f"tensor {mark!r} is of quantised values, but quantization_config leaves {module!r} out"
            raise WeightsError(f"{self._where}: {message}")
        name = f"{module}.weight"
        self._matrices[name] = read_matrix(ModuleTensors(module, parts, self._stored, self._where), scheme)
        self._parts[name] = tuple(parts.values())

    def _in_order(self, plain: list[str]) -> list[str]:
        """As the files have them; a matrix where the first of its tensors is."""
        place = {name: index for index, name in enumerate(self._stored.names())}
        first = {name: min(place[part] for part in parts) for name, parts in self._parts.items()}
        return sorted([*plain, *self._matrices], key=lambda name: first.get(name, place.get(name, 0)))


def _ends(name: str, parts: tuple[str, ...]) -> str | None:
    """The part that follows a module's name."""
    return next((part for part in parts if name.endswith(part) and name[: -len(part)].endswith(".")), None)
