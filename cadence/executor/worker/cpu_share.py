"""The cores of this machine, shared out among engines. Imports no device: a front asks it too."""

from cadence.device.cpus import cpu_shares, usable_cpus

__all__ = ["cpu_shares", "usable_cpus"]
