"""The cores of this machine, shared out among engines. Imports no device: a front asks it too."""

from cadence.device.cpus import cpu_shares

__all__ = ["cpu_shares"]
