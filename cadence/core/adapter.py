"""The adapter of a request, as plain data: it travels with the request and is read where the model is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cadence.core.inputs.attachments import Attachment

ADAPTERS = "adapters"  # the feature's name
NO_SLOT = -1  # of a row without an adapter
NO_ADAPTER_DIGEST = ""


@dataclass(frozen=True, slots=True)
class AdapterSpec(Attachment):
    """One LoRA adapter. Equal digests are the same adapter, whatever their names and paths."""

    name: str
    path: str  # of its PEFT directory, on the machine of the model
    digest: str = NO_ADAPTER_DIGEST  # of the content, as hexadecimal digits, once it was read
    number: int = 0  # by which users name it in calls; 0 = none
    feature: str = ADAPTERS

    lacking: ClassVar[str] = "an adapter needs an engine with slots for adapters: enable_lora"

    @property
    def keys_digest(self) -> str:
        return self.digest

    @property
    def keys_name(self) -> str:
        return self.digest or self.path

    def resolved(self, digest: str) -> AdapterSpec:
        return replace(self, digest=digest)


@dataclass(frozen=True, slots=True)
class AdapterOutcome:
    """What came of reading an adapter."""

    path: str
    digest: str
    error: str  # why it cannot be used; "" = it can


@dataclass(frozen=True, slots=True)
class AdapterStats:
    """The adapters of requests, by name, sorted. One that has both running and waiting requests is in both."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    time: float = 0.0  # seconds since 1970, when it was so


NO_ADAPTER_STATS = AdapterStats()
