"""The items of a conversation, and the room that those of all open sockets have together."""

from __future__ import annotations

from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.errors import unavailable
from cadence.entrypoints.server.routes.realtime.events import text_of_item

MOST_ITEMS = 4096
ITEM_SIZE = 1024  # characters that each item counts for at least: objects around a text are larger than a short one


class ConversationRoom:
    """Characters, of all conversations together."""

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit


class SessionItems:
    def __init__(self, room: ConversationRoom, limit: int) -> None:
        """limit: characters"""
        self._room = room
        self._limit = limit
        self._items: dict[str, dict[str, Any]] = {}  # by their ids
        self.size = 0  # characters

    @property
    def items(self) -> list[dict[str, Any]]:
        return list(self._items.values())

    def add(self, item: dict[str, Any]) -> str | None:
        """-> the id of the item before it. Raises where there is no room."""
        size = _size(item)
        if len(self._items) >= MOST_ITEMS:
            raise InvalidRequestError(f"a conversation has at most {MOST_ITEMS} items", "item")
        if item["id"] in self._items:
            raise InvalidRequestError("there is an item of this id", "item.id")
        if self.size + size > self._limit:
            raise InvalidRequestError(f"a conversation has at most {self._limit} characters", "item")
        if self._room.held + size > self._room.limit:
            raise unavailable("The server holds as much of conversations as it may; try again later.")
        before = next(reversed(self._items), None)
        self._items[item["id"]] = item
        self._grow(size)
        return before

    def delete(self, item_id: str | None) -> None:
        item = self._items.pop(item_id or "", None)
        if item is None:
            raise InvalidRequestError("there is no item of this id", "item_id")
        self._grow(-_size(item))

    def clear(self) -> None:
        self._items.clear()
        self._grow(-self.size)

    def _grow(self, size: int) -> None:
        self.size += size
        self._room.held += size


def _size(item: dict[str, Any]) -> int:
    return ITEM_SIZE + len(text_of_item(item)) + ITEM_SIZE // 4 * len(item["content"])
