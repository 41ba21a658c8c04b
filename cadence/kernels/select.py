"""Picks the implementation of the ops for a device."""

from __future__ import annotations

import logging

from cadence.core.errors import ConfigError
from cadence.kernels.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps

_logger = logging.getLogger(__name__)


def select_ops(device_kind: str, name: str = "auto", deterministic: bool = False) -> Ops:
    """`name` is "auto", "reference", "cpu" or "triton"; "auto" falls back to the reference with one warning.

    `deterministic` asks of Triton kernels what those of the CPU always give: results that do not depend on the batch.
    """
    if name == "auto":
        return _auto_cpu() if device_kind == "cpu" else _open("triton", deterministic)
    wanted = {"cpu": "cpu", "triton": "cuda"}.get(name, device_kind)
    if wanted != device_kind:
        raise ConfigError(f"kernels {name!r} do not run on device {device_kind!r}", field="kernels")
    return _open(name, deterministic)


def _open(name: str, deterministic: bool) -> Ops:
    if name == "reference":
        return ReferenceOps()
    if name == "cpu":
        from cadence.kernels.cpu.ops import CpuOps

        return CpuOps()
    if name == "triton":
        from cadence.kernels.triton.ops import TritonOps

        return TritonOps(deterministic)
    raise ConfigError(f"kernels must be 'auto', 'reference', 'cpu' or 'triton', not {name!r}", field="kernels")


def _auto_cpu() -> Ops:
    from cadence.kernels.cpu.build import BuildError

    try:
        return _open("cpu", deterministic=False)
    except BuildError as error:
        _logger.warning("C kernels unavailable, running plain torch instead: %s", error)
        return ReferenceOps()
