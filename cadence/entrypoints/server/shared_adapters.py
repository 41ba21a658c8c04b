"""The table of adapters that all API processes serve, in the process that made them."""

from __future__ import annotations

from collections.abc import Iterable

from cadence.core.contract.adapter_messages import AdapterTable, NamedAdapter, TableCall, TableReply, TableVerb


class SharedAdapters:
    def __init__(self, at_start: Iterable[NamedAdapter]) -> None:
        """at_start: those that every process serves without being told"""
        self._by_name = {adapter.name: adapter for adapter in at_start}
        self._last = max((adapter.number for adapter in self._by_name.values()), default=0)
        self._version = 0

    @property
    def table(self) -> AdapterTable:
        return AdapterTable(self._version, list(self._by_name.values()))

    def take(self, call: TableCall) -> TableReply:
        """The version is another one where that changed something."""
        name = call.adapter.name
        if call.verb is TableVerb.NUMBER:
            self._last += 1
            return TableReply(number=self._last)
        if (name in self._by_name) is (call.verb is TableVerb.ADD):
            return TableReply(done=False)
        if call.verb is TableVerb.ADD:
            self._by_name[name] = call.adapter
        else:
            del self._by_name[name]
        self._version += 1
        return TableReply()
