"""Many at once: every one of a thousand streams gets what it would have got alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from cadence import LLM, SamplingParams
from tests.server.helpers import ServerProcess
from tests.server.streams import stream_completion
from tests.server.test_faults import FLAGS, assert_nothing_lost, body

COUNT = 1000
TOKENS = 6


def test_a_thousand_streams_at_once(tiny_model: Callable[[str], Path]) -> None:
    async def all_of_them(url: str) -> list[tuple[int, str, bool]]:
        return list(await asyncio.gather(*(stream_completion(url, body(n, TOKENS)) for n in range(COUNT))))

    with ServerProcess(tiny_model("llama"), *FLAGS, "--max-queued-requests", str(COUNT)) as server:
        answers = asyncio.run(all_of_them(server.url))
        assert_nothing_lost(server)
    assert all(status == 200 and done for status, _, done in answers)
    offline = LLM(str(tiny_model("llama")), dtype="float32", max_model_len=512, enable_prefix_caching=False)
    for number in range(0, COUNT, 37):  # one at a time
        request = body(number, TOKENS)
        params = SamplingParams(
            temperature=request["temperature"], seed=request["seed"], max_tokens=TOKENS, ignore_eos=True
        )
        alone = offline.generate({"prompt_token_ids": request["prompt"]}, params, use_tqdm=False)[0]
        assert answers[number][1] == alone.outputs[0].text, number
