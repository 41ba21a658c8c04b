"""Requests that kill the real engine: they fail alone, and the others have the tokens that they would have had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.test_supervisor import ask, many, running
from tests.server.engines import ABORTS, RAISES, UNREADABLE

pytestmark = [pytest.mark.engine, pytest.mark.warm]


@pytest.mark.parametrize("token", [UNREADABLE, RAISES, ABORTS])
def test_a_poison_fails_alone_among_twenty(tiny_model: Callable[[str], Path], token: int) -> None:
    """Of the real engine: what it cannot read, what its step raises, what makes it abort."""

    async def check() -> None:
        async with running(tiny_model("llama"), "poison") as llm:
            alone = await many(llm, 20)
            streams = asyncio.gather(*(ask(llm, number) for number in range(10)))
            poison = asyncio.ensure_future(ask(llm, 10, extra=(token,)))
            more = asyncio.gather(*(ask(llm, number) for number in range(10, 20)))
            assert [*await streams, *await more] == alone
            _, reason, why = await poison
            assert reason == "error" and "secret" not in why
            assert why == "the engine could not read this request" or "times while this request was in it" in why
            assert await ask(llm, 3) == alone[3] and llm.is_ready()
            assert llm.num_restarts <= (0 if token == UNREADABLE else 5)

    asyncio.run(check())
