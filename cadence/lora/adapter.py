"""An adapter out of a PEFT directory: judged by its configuration and its header first, and read when it fits.

Files are untrusted. `open_adapter` reads no tensor, whatever their sizes; whether the shapes fit a model is another
matter (`fit.py`), which comes before `AdapterFile.read`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from cadence.core.errors import AdapterError, WeightsError
from cadence.core.shown import shown
from cadence.lora.config import CONFIG_FILE, AdapterConfig, read_config
from cadence.lora.limits import MOST_HEADER_BYTES, MOST_NAME, MOST_TENSORS, LoraLimits
from cadence.lora.names import Role, parse_name
from cadence.models.loader.safetensors_file import SafetensorsFile

WEIGHTS_FILE = "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_PAIRS = {
    Role.A: Role.B,
    Role.B: Role.A,
    Role.EMBEDDING_A: Role.EMBEDDING_B,
    Role.EMBEDDING_B: Role.EMBEDDING_A,
}
_CHUNK = 1 << 20  # bytes hashed at once

Shapes = Mapping[Role, tuple[int, ...]]  # of what an adapter has for one module


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """What an adapter has for one module of the model."""

    name: str  # as the model's checkpoint names it: "model.layers.0.self_attn.q_proj"
    tensors: Mapping[Role, torch.Tensor]
    scale: float

    @property
    def rank(self) -> int:
        """0: it has no A and B."""
        return rank_of({role: tuple(tensor.shape) for role, tensor in self.tensors.items()})


@dataclass(frozen=True, slots=True)
class Adapter:
    digest: str  # SHA-256 of both files: what prefix hashes are keyed by
    modules: Mapping[str, AdaptedModule]  # by their names


class AdapterFile:
    """An adapter of which no tensor was read."""

    def __init__(self, config: AdapterConfig, file: SafetensorsFile, names: Mapping[str, Mapping[Role, str]]) -> None:
        """names: of tensors in the file, by module and role"""
        self.path = file.path
        self._config = config
        self._file = file
        self._names = names

    def shapes(self) -> dict[str, Shapes]:
        """By module, named as the model's checkpoint names it."""
        return {
            module: {role: self._file.shape(name) for role, name in roles.items()}
            for module, roles in self._names.items()
        }

    def read(self, modules: Collection[str]) -> Adapter:
        """What it has for these modules, which are the model's. Raises one AdapterError that names file and field."""
        scales = {module: self._checked_scale(module) for module in modules}
        try:
            digest = _digest(self._config.path, self.path)
        except OSError as error:
            raise AdapterError(str(error)) from None
        held = {
            module: AdaptedModule(module, self._tensors(self._names[module]), scale) for module, scale in scales.items()
        }
        return Adapter(digest, held)

    def _checked_scale(self, module: str) -> float:
        rank = rank_of({role: self._file.shape(name) for role, name in self._names[module].items()})
        wanted = self._config.rank_of(module)
        if rank and rank != wanted:
            raise AdapterError(f"{self.path}: module {shown(module)} has rank {rank}, but {CONFIG_FILE} says {wanted}")
        return self._config.scale_of(module)

    def _tensors(self, names: Mapping[Role, str]) -> dict[Role, torch.Tensor]:
        return {role: _tensor(self._file, name) for role, name in names.items()}


def rank_of(shapes: Shapes) -> int:
    """0: there are no A and B."""
    return shapes.get(Role.A, shapes.get(Role.EMBEDDING_A, (0,)))[0]


def open_adapter(directory: Path, limits: LoraLimits) -> AdapterFile:
    """Raises one AdapterError that names file and field."""
    config = read_config(directory)
    path = _weights_path(directory, limits)
    try:
        _check_header_size(path)
        file = SafetensorsFile(path)
    except (WeightsError, OSError) as error:
        raise AdapterError(str(error)) from None
    if len(file.names()) > MOST_TENSORS:
        raise AdapterError(f"{path}: {len(file.names())} tensors, at most {MOST_TENSORS}")
    names: dict[str, dict[Role, str]] = {}
    for name in file.names():
        module, role = _parsed(path, name)
        held = names.setdefault(module, {})
        if role in held:
            raise AdapterError(f"{path}: {shown(name)} and another tensor are the same of one module")
        _check_stored(file, name)
        held[role] = name
    if not names:
        raise AdapterError(f"{path}: no tensors")
    for roles in names.values():
        if Role.BASE in roles and config.bias == "none":
            roles.pop(Role.BIAS, None)  # the model's own, saved with its matrix
    found = AdapterFile(config, file, names)
    for module, shapes in found.shapes().items():
        _check_module(module, shapes, config, limits, path)
    return found


def _weights_path(directory: Path, limits: LoraLimits) -> Path:
    path = directory / WEIGHTS_FILE
    if not path.is_file():
        if (directory / _PICKLED).exists():
            message = "a pickled file can run code when it is read; save the adapter as safetensors"
            raise AdapterError(f"{directory / _PICKLED}: {message}")
        raise AdapterError(f"{path}: no such file")
    size = path.stat().st_size
    if size > limits.max_file_bytes:
        allowed = f"{limits.max_file_bytes / 2**20:.0f} MiB"
        raise AdapterError(f"{path}: {size / 2**20:.0f} MiB, more than the {allowed} an adapter may have")
    return path


def _check_header_size(path: Path) -> None:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if MOST_HEADER_BYTES < size < path.stat().st_size:
        raise AdapterError(f"{path}: a header of {size} bytes, at most {MOST_HEADER_BYTES}")


def _digest(*paths: Path) -> str:
    """Over each file's length and bytes."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.stat().st_size.to_bytes(8, "little"))
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _parsed(path: Path, name: str) -> tuple[str, Role]:
    found = parse_name(name) if len(name) <= MOST_NAME else None
    if found is None:
        raise AdapterError(f"{path}: tensor {shown(name)} is nothing that a LoRA adapter has")
    return found


def _check_stored(file: SafetensorsFile, name: str) -> None:
    where = f"{file.path}: tensor {shown(name)}"
    try:
        dtype = file.dtype(name)
    except WeightsError as error:
        raise AdapterError(str(error)) from None
    if dtype not in _FLOATS:
        types = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FLOATS)
        raise AdapterError(f"{where} is of {dtype}; types taken: {types}")
    shape = file.shape(name)
    if len(shape) not in (1, 2) or 0 in shape:
        raise AdapterError(f"{where} is {shown(list(shape))}; adapters have vectors and matrices")


def _tensor(file: SafetensorsFile, name: str) -> torch.Tensor:
    """A copy: the file may change under our feet."""
    tensor = file.load(name).clone()
    if not bool(torch.isfinite(tensor).all()):
        raise AdapterError(f"{file.path}: tensor {shown(name)} has numbers that are infinite or not numbers")
    file.release(name)
    return tensor


def _check_module(name: str, shapes: Shapes, config: AdapterConfig, limits: LoraLimits, path: Path) -> None:
    for role, partner in _PAIRS.items():
        if role in shapes and partner not in shapes:
            raise AdapterError(f"{path}: module {shown(name)} has {role.value} but no {partner.value}")
    rank = rank_of(shapes)
    if rank:
        _check_rank(name, shapes, limits, path)
    if config.dora and rank and Role.MAGNITUDE not in shapes:
        raise AdapterError(f"{path}: module {shown(name)} has no {Role.MAGNITUDE.value}, but 'use_dora' is set")
    if Role.MAGNITUDE in shapes and not (config.dora and rank):
        raise AdapterError(f"{path}: module {shown(name)} has {Role.MAGNITUDE.value} without 'use_dora', or no A and B")
    if {Role.BIAS, Role.PLAIN_BIAS} & set(shapes) and config.bias == "none":
        raise AdapterError(f"{path}: module {shown(name)} has a bias, but 'bias' is 'none' in {CONFIG_FILE}")


def _check_rank(name: str, shapes: Shapes, limits: LoraLimits, path: Path) -> None:
    """Its tensors are matrices of one rank, which is not too high."""
    first = Role.A if Role.A in shapes else Role.EMBEDDING_A
    second = _PAIRS[first]
    a, b = shapes[first], shapes[second]
    if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
        raise AdapterError(
            f"{path}: module {shown(name)} has {first.value} {list(a)} and {second.value} {list(b)}, "
            "which have no rank in common"
        )
    if a[0] > limits.max_rank:
        raise AdapterError(f"{path}: module {shown(name)} has rank {a[0]}, but max_lora_rank is {limits.max_rank}")
