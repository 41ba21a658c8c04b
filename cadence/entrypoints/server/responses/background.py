"""Responses that run in the background, whether or not a client waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from cadence.core.contract.response_messages import ResponseState, StoreVerb
from cadence.entrypoints.server.chat.events import ChatEvent
from cadence.entrypoints.server.http.errors import overloaded
from cadence.entrypoints.server.http.request_deadline import ends_within
from cadence.entrypoints.server.responses.client import TenantClient
from cadence.entrypoints.server.responses.manager import MAX_BACKGROUND
from cadence.entrypoints.server.responses.turn import Turn


async def announce(turn: Turn, store: TenantClient) -> None:
    """It may be asked for from now on, and is run by `start_in_background` or taken back by `withdraw`."""
    if (await turn.begin(store)).state is ResponseState.TOO_MANY:
        withdraw(turn, store)
        raise overloaded(f"There are {MAX_BACKGROUND} responses in the background already; try again later.", 5)


def withdraw(turn: Turn, store: TenantClient) -> None:
    store.runs.pop(turn.answer.id, None)
    store.send(StoreVerb.END, turn.answer.id)


def start_in_background(
    turn: Turn, store: TenantClient, events: AsyncGenerator[ChatEvent, None], seconds: float
) -> None:
    """seconds: that it may take"""
    timed = ends_within(events, seconds, "The response took longer than the limit")
    turn.run.task = asyncio.ensure_future(_run(turn, store, timed))
    if turn.run.cancelled:
        turn.run.end()


async def _run(turn: Turn, store: TenantClient, events: AsyncGenerator[ChatEvent, None]) -> None:
    async for _ in turn.write(store, events):
        pass
