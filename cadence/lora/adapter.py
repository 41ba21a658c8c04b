"""An adapter out of a PEFT directory: read whole, checked against itself, and named by what it holds.

Whether it fits a model is another matter (`fit.py`): here nothing of the model is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from cadence.core.errors import AdapterError, WeightsError
from cadence.core.shown import shown
from cadence.lora.config import CONFIG_FILE, AdapterConfig, read_config
from cadence.lora.limits import MOST_TENSORS, LoraLimits
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


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """What an adapter has for one module of the model."""

    name: str  # as the model's checkpoint names it: "model.layers.0.self_attn.q_proj"
    tensors: Mapping[Role, torch.Tensor]
    scale: float

    @property
    def rank(self) -> int:
        """0: it has no A and B."""
        found = self.tensors.get(Role.A, self.tensors.get(Role.EMBEDDING_A))
        return 0 if found is None else found.shape[0]


@dataclass(frozen=True, slots=True)
class Adapter:
    path: Path
    digest: str  # SHA-256 of both files: what prefix hashes are keyed by
    modules: Mapping[str, AdaptedModule]  # by their names
    dora: bool

    @property
    def max_rank(self) -> int:
        return max((module.rank for module in self.modules.values()), default=0)

    @property
    def num_bytes(self) -> int:
        """Of host memory."""
        return sum(tensor.nbytes for module in self.modules.values() for tensor in module.tensors.values())


def read_adapter(directory: Path, limits: LoraLimits) -> Adapter:
    """Raises one AdapterError that names file and field."""
    config = read_config(directory)
    path = _weights_path(directory, limits)
    try:
        file = SafetensorsFile(path)
        digest = _digest(directory / CONFIG_FILE, path)
    except (WeightsError, OSError) as error:
        raise AdapterError(str(error)) from None
    if len(file.names()) > MOST_TENSORS:
        raise AdapterError(f"{path}: {len(file.names())} tensors, at most {MOST_TENSORS}")
    found: dict[str, dict[Role, torch.Tensor]] = {}
    for name in file.names():
        module, role = _parsed(path, name)
        held = found.setdefault(module, {})
        if role in held:
            raise AdapterError(f"{path}: {shown(name)} and another tensor are the same of one module")
        held[role] = _tensor(file, name)
    modules = {name: _module(name, tensors, config, limits, path) for name, tensors in found.items()}
    if not modules:
        raise AdapterError(f"{path}: no tensors")
    return Adapter(directory, digest, modules, config.dora)


def _weights_path(directory: Path, limits: LoraLimits) -> Path:
    path = directory / WEIGHTS_FILE
    if not path.is_file():
        if (directory / _PICKLED).exists():
            message = "a pickled file can run code when it is read; save the adapter as safetensors"
            raise AdapterError(f"{directory / _PICKLED}: {message}")
        raise AdapterError(f"{path}: no such file")
    size = path.stat().st_size
    if size > limits.max_file_bytes:
        allowed = f"{limits.max_file_bytes / 2**30:.1f} GiB"
        raise AdapterError(f"{path}: {size / 2**30:.1f} GiB, more than the {allowed} an adapter may have")
    return path


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
    found = parse_name(name)
    if found is None:
        raise AdapterError(f"{path}: tensor {shown(name)} is nothing that a LoRA adapter has")
    return found


def _tensor(file: SafetensorsFile, name: str) -> torch.Tensor:
    """A copy: the file may change under our feet."""
    try:
        tensor = file.load(name).clone()
    except WeightsError as error:
        raise AdapterError(str(error)) from None
    if tensor.dtype not in _FLOATS:
        types = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FLOATS)
        raise AdapterError(f"{file.path}: tensor {shown(name)} is of {tensor.dtype}; types taken: {types}")
    if not bool(torch.isfinite(tensor).all()):
        raise AdapterError(f"{file.path}: tensor {shown(name)} has numbers that are infinite or not numbers")
    file.release(name)
    return tensor


def _module(
    name: str, tensors: dict[Role, torch.Tensor], config: AdapterConfig, limits: LoraLimits, path: Path
) -> AdaptedModule:
    for role, partner in _PAIRS.items():
        if role in tensors and partner not in tensors:
            raise AdapterError(f"{path}: module {shown(name)} has {role.value} but no {partner.value}")
    module = AdaptedModule(name, tensors, config.scale_of(name))
    if module.rank:
        _check_rank(module, config, limits, path)
    if config.dora and module.rank and Role.MAGNITUDE not in tensors:
        raise AdapterError(f"{path}: module {shown(name)} has no {Role.MAGNITUDE.value}, but 'use_dora' is set")
    if Role.MAGNITUDE in tensors and not (config.dora and module.rank):
        raise AdapterError(f"{path}: module {shown(name)} has {Role.MAGNITUDE.value} without 'use_dora', or no A and B")
    biases = {Role.BIAS, Role.PLAIN_BIAS} & set(tensors)
    if biases and config.bias == "none":
        raise AdapterError(f"{path}: module {shown(name)} has a bias, but 'bias' is 'none' in {CONFIG_FILE}")
    return module


def _check_rank(module: AdaptedModule, config: AdapterConfig, limits: LoraLimits, path: Path) -> None:
    """Its tensors are matrices of one rank, which is the one the configuration names and not too high."""
    name, wanted = shown(module.name), config.rank_of(module.name)
    first = Role.A if Role.A in module.tensors else Role.EMBEDDING_A
    second = _PAIRS[first]
    a, b = module.tensors[first], module.tensors[second]
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != b.shape[1]:
        raise AdapterError(
            f"{path}: module {name} has {first.value} {list(a.shape)} and {second.value} {list(b.shape)}, "
            "which have no rank in common"
        )
    if a.shape[0] != wanted:
        raise AdapterError(f"{path}: module {name} has rank {a.shape[0]}, but {CONFIG_FILE} says {wanted}")
    if wanted > limits.max_rank:
        raise AdapterError(f"{path}: module {name} has rank {wanted}, but max_lora_rank is {limits.max_rank}")
