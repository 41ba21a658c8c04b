"""Picks the implementation of the ops for a device."""

from __future__ import annotations

import logging

from cadence.core.errors import ConfigError
from cadence.device.calls import Calls
from cadence.device.cpus import usable_cpus
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import RowOps
from cadence.kernels.reference.ops import ReferenceOps
from cadence.kernels.reference.rows import ReferenceRowOps

_logger = logging.getLogger(__name__)

_SLOW = "plain torch computes instead, ten or more times slower, and a GGUF file takes up to eight times its size."


def select_ops(
    device_kind: str,
    name: str = "auto",
    deterministic: bool = False,
    calls: Calls | None = None,
    cpu_isa: str = "auto",
) -> Ops:
    """`name` is "auto", "reference", "cpu" or "triton"; "auto" falls back to the reference with one warning.

    `deterministic` asks of Triton kernels what those of the CPU always give: results that do not depend on the batch.
    `calls` is the device's way into C, `cpu_isa` the instruction set of its matrix products.
    """
    calls = calls or Calls(usable_cpus())
    if name == "auto":
        return _auto_cpu(calls, cpu_isa) if device_kind == "cpu" else _open("triton", deterministic, calls, cpu_isa)
    wanted = {"cpu": "cpu", "triton": "cuda"}.get(name, device_kind)
    if wanted != device_kind:
        raise ConfigError(f"kernels {name!r} do not run on device {device_kind!r}", field="kernels")
    return _open(name, deterministic, calls, cpu_isa)


def select_row_ops(ops: Ops, calls: Calls) -> RowOps:
    """The row ops that go with the ops of the model."""
    if ops.name == "cpu":
        from cadence.kernels.cpu.rows import CpuRowOps

        return CpuRowOps(calls)
    if ops.name == "triton":
        from cadence.kernels.triton.rows import TritonRowOps

        return TritonRowOps()
    return ReferenceRowOps()


def _open(name: str, deterministic: bool, calls: Calls, cpu_isa: str) -> Ops:
    if name == "reference":
        return ReferenceOps()
    if name == "cpu":
        from cadence.kernels.cpu.ops import CpuOps

        return CpuOps(calls, cpu_isa)
    if name == "triton":
        from cadence.kernels.triton.cache import prepare_cache
        from cadence.kernels.triton.ops import TritonOps

        prepare_cache()
        return TritonOps(deterministic)
    raise ConfigError(f"kernels must be 'auto', 'reference', 'cpu' or 'triton', not {name!r}", field="kernels")


def _auto_cpu(calls: Calls, cpu_isa: str) -> Ops:
    from cadence.kernels.cpu.runtime.build import BuildError, NoCompilerError

    try:
        return _open("cpu", False, calls, cpu_isa)
    except NoCompilerError as error:
        _logger.warning("%s; %s Install one: apt install gcc, dnf install gcc, or set CC.", error, _SLOW)
    except BuildError as error:
        _logger.warning("the C kernels cannot be used; %s The reason: %s", _SLOW, error)
    return ReferenceOps()
