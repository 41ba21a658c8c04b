"""Calls that were carried out, and that the next engine must carry out again should this one die: as the lines of
`core/contract/control.py` say."""

from __future__ import annotations

from typing import Any, NamedTuple

from cadence.core.contract.control import P, Verb


class KeptCall(NamedTuple):
    name: str  # of what the engine has by it
    verb: Verb[Any, Any]
    payload: Any


class ControlJournal:
    def __init__(self) -> None:
        self._kept: dict[str, KeptCall] = {}  # by name, in the order in which they came

    def note(self, verb: Verb[P, Any], payload: P) -> None:
        """It was carried out, or will be by an engine that is down."""
        for name in verb.drops(payload):
            self._kept.pop(name, None)
        if name := verb.keeps(payload):
            self._kept[name] = KeptCall(name, verb, payload)

    def kept(self) -> list[KeptCall]:
        return list(self._kept.values())
