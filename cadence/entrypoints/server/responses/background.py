"""Responses that run in the background, whether or not a client waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from cadence.entrypoints.server.chat.events import ChatEvent
from cadence.entrypoints.server.http.errors import overloaded
from cadence.entrypoints.server.http.request_deadline import ends_within
from cadence.entrypoints.server.responses.store import MAX_AGE_S, MAX_BACKGROUND, RunningResponse, TenantResponses
from cadence.entrypoints.server.responses.turn import Turn

CANCEL_S = 5.0  # to wait for a cancelled response to be over


def check_background(store: TenantResponses) -> None:
    if store.num_background() >= MAX_BACKGROUND:
        raise overloaded(f"There are {MAX_BACKGROUND} responses in the background already; try again later.", 5)


def start_in_background(turn: Turn, store: TenantResponses, events: AsyncGenerator[ChatEvent, None]) -> None:
    """It may be asked for from now on."""
    store.running[turn.answer.id] = turn.running
    turn.running.task = asyncio.ensure_future(_run(turn, store, events))


async def cancel_background(running: RunningResponse) -> None:
    """Returns when it is over, or soon after."""
    if running.task is not None:
        running.task.cancel()
        await asyncio.wait([running.task], timeout=CANCEL_S)


async def _run(turn: Turn, store: TenantResponses, events: AsyncGenerator[ChatEvent, None]) -> None:
    async for _ in turn.write(store, ends_within(events, MAX_AGE_S, "The response took longer than the limit")):
        pass
