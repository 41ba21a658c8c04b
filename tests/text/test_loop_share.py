"""What one turn of an event loop does, and what it leaves for the next."""

from __future__ import annotations

import asyncio

from cadence.text.service.loop_share import LoopTurns


def test_a_turn_begins_so_many_and_the_others_follow_in_order() -> None:
    begun: list[tuple[int, int]] = []  # (number of a request, turn)

    async def scenario() -> None:
        turns, now = LoopTurns(limit=3), 0

        async def request(number: int) -> None:
            await turns.enter()
            begun.append((number, now))

        tasks = [asyncio.ensure_future(request(number)) for number in range(10)]
        await asyncio.sleep(0)
        now = 1
        tasks[4].cancel()  # it waits: its place is another's
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            now += 1
        first = asyncio.ensure_future(turns.enter())
        await asyncio.sleep(0)
        assert first.done(), "a turn with room waits for nothing"

    asyncio.run(scenario())
    assert [number for number, _ in begun] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    by_turn = [turn for _, turn in begun]
    assert max(by_turn.count(turn) for turn in by_turn) == 3 and len(set(by_turn)) == 3
