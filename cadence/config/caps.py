"""What is asked of the hardware."""

from __future__ import annotations

from typing import Protocol


class Caps(Protocol):
    """`device.base.DeviceCaps` has it."""

    @property
    def kind(self) -> str: ...  # cpu | cuda

    @property
    def total_memory(self) -> int: ...  # bytes

    @property
    def native_bf16(self) -> bool: ...

    @property
    def count(self) -> int: ...  # devices

    @property
    def native_fp16(self) -> bool: ...
