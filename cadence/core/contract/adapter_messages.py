"""What crosses between processes that serve adapters and the one that has the table of them: which names requests over
HTTP may use. Engines are told of adapters by the verbs of `core/contract/control.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    name: str
    number: int  # which no other adapter of the server has, or ever had
    path: str
    load_inplace: bool = False


@dataclass(frozen=True, slots=True)
class AdapterTable:
    """All adapters that are served. A later version takes the place of an earlier one."""

    version: int
    adapters: list[NamedAdapter] = field(default_factory=list)


class TableVerb(StrEnum):
    NUMBER = "number"  # asks for one that no other adapter has
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class TableCall:
    """The reply to a change comes when every process has it."""

    verb: TableVerb
    adapter: NamedAdapter


@dataclass(frozen=True, slots=True)
class TableReply:
    done: bool = True  # False: the name is taken, or there is no such adapter
    number: int = 0
