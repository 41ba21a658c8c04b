"""Picks the implementation of the ops for a device."""

from __future__ import annotations

import logging

from cadence.core.errors import ConfigError
from cadence.device.base import Device
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps

_logger = logging.getLogger(__name__)

_SLOW = "plain torch computes instead, ten or more times slower, and a GGUF file takes up to eight times its size."


def select_ops(
    device: Device, name: str = "auto", deterministic: bool = False, cpu_isa: str = "auto", packs: bool = False
) -> Ops:
    """`name` is "auto", "reference", "cpu" or "triton"; "auto" falls back to the reference with one warning.

    `deterministic` asks of Triton kernels what those of the CPU always give: results that do not depend on the batch.
    `cpu_isa` is the instruction set of a CPU's matrix products. `packs`: matrices of a model on a GPU are of few bits.
    """
    kind = device.caps.kind
    wanted = {"cpu": "cpu", "triton": "cuda"}.get(name, kind)
    if wanted != kind:
        raise ConfigError(f"kernels {name!r} do not run on device {kind!r}", field="kernels")
    if name == "reference":
        return ReferenceOps()
    if name not in ("auto", "cpu", "triton"):
        raise ConfigError(f"kernels must be 'auto', 'reference', 'cpu' or 'triton', not {name!r}", field="kernels")
    if isinstance(device, CpuDevice):
        return _open_cpu(device, cpu_isa) if name == "cpu" else _auto_cpu(device, cpu_isa)
    return _open_triton(deterministic, packs)


def _open_triton(deterministic: bool, packs: bool) -> Ops:
    from cadence.kernels.triton.common.cache import prepare_cache
    from cadence.kernels.triton.ops import TritonOps

    prepare_cache()
    return TritonOps(deterministic, packs)


def _open_cpu(device: CpuDevice, isa: str) -> Ops:
    from cadence.kernels.cpu.ops import CpuOps

    return CpuOps(device.calls, isa)


def _auto_cpu(device: CpuDevice, isa: str) -> Ops:
    from cadence.kernels.cpu.runtime.build import BuildError, NoCompilerError

    try:
        return _open_cpu(device, isa)
    except NoCompilerError as error:
        _logger.warning("%s; %s Install one: apt install gcc, dnf install gcc, or set CC.", error, _SLOW)
    except BuildError as error:
        _logger.warning("the C kernels cannot be used; %s The reason: %s", _SLOW, error)
    return ReferenceOps()
