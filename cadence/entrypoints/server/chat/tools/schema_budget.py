"""How much of its tools' schemas a request may have looked at: a short schema can lead to itself many times over."""

from __future__ import annotations

from cadence.core.errors import InvalidRequestError

MAX_NODES = 1 << 15  # schemas and listed values: about a tenth of a second


class SchemaBudget:
    """For one walk over all tools of a request. A node that is reached again is counted again."""

    def __init__(self, limit: int = MAX_NODES) -> None:
        self.spent = 0
        self._limit = limit

    def spend(self, nodes: int = 1) -> None:
        self.spent += nodes
        if self.spent > self._limit:
            message = f"tools: their schemas lead to more than {self._limit} schemas and values, references followed"
            raise InvalidRequestError(message, "tools")
