"""The engine in its own process: the same answers, and they survive its death."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence import LLM, PoolingParams, RequestOutput, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import EngineDeadError, InvalidRequestError, ReaderTooSlowError, TokenizerError
from cadence.engine.text.output_processor import MAX_HELD
from cadence.entrypoints.async_llm import AsyncLLM

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "num_gpu_blocks_override": 2000,
    "max_logprobs": -1,
}
MAX_TOKENS, NUM_COMPLETIONS = 500, 8  # of one reader who takes nothing
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "seed": 4, "n": 3, "top_p": 0.9},
    {"temperature": 0, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 0.9, "seed": 8, "stop": ["a", "e"]},
    {"temperature": 0, "repetition_penalty": 1.3, "min_tokens": 4},
]


class Server:
    """One AsyncLLM and the event loop it lives in."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.runner = asyncio.Runner()
        self.llm = self.run(AsyncLLM.start(EngineArgs(model=self.directory, **OPTIONS)))

    def run(self, job: Any) -> Any:
        return self.runner.run(job)

    def close(self) -> None:
        self.run(self.llm.shutdown(drain=False))
        self.runner.close()


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path]) -> Iterator[Server]:
    made = Server(tiny_model("llama"))
    yield made
    made.close()


def prompt(number: int) -> list[int]:
    return [5 + number, 6, 7, 8 + number % 5]


def params(number: int, kind: RequestOutputKind, **changes: Any) -> SamplingParams:
    options = {"max_tokens": 24, "ignore_eos": True, **PARAMS[number % len(PARAMS)], **changes}
    return SamplingParams(**options, output_kind=kind)


async def last(llm: AsyncLLM, number: int, **changes: Any) -> RequestOutput:
    job = llm.generate(prompt(number), params(number, RequestOutputKind.FINAL_ONLY, **changes), f"final-{number}")
    return [output async for output in job][-1]


async def joined(llm: AsyncLLM, number: int, **changes: Any) -> tuple[list[int], str, str | None]:
    """Tokens and text of one streamed completion."""
    tokens, text, reason = [], "", None
    job = llm.generate(prompt(number), params(number, RequestOutputKind.DELTA, **changes), f"stream-{number}")
    async for output in job:
        tokens += output.outputs[0].token_ids
        text += output.outputs[0].text
        reason = output.outputs[0].finish_reason
    return tokens, text, reason


def seen(output: RequestOutput) -> Any:
    outputs = [(c.index, list(c.token_ids), c.text, c.finish_reason, c.stop_reason, c.logprobs) for c in output.outputs]
    return outputs, output.prompt_logprobs, output.prompt_token_ids


def test_answers_are_those_of_the_engine_in_process(server: Server) -> None:
    async def all_at_once() -> list[RequestOutput]:
        return await asyncio.gather(*(last(server.llm, number) for number in range(12)))

    offline = LLM(server.directory, **OPTIONS)
    expected = offline.generate(
        [prompt(number) for number in range(12)],
        [params(number, RequestOutputKind.FINAL_ONLY) for number in range(12)],
        use_tqdm=False,
    )
    assert [seen(output) for output in server.run(all_at_once())] == [seen(output) for output in expected]


def test_a_reader_that_takes_nothing_ends_its_request(server: Server) -> None:
    """The engine is rid of it long before its last token, though nobody has read on."""

    async def scenario() -> int:
        wanted = params(1, RequestOutputKind.DELTA, max_tokens=MAX_TOKENS, n=NUM_COMPLETIONS, logprobs=-1)
        job = server.llm.generate(prompt(0), wanted, "nobody reads")
        tokens = _num_tokens(await anext(job))
        ends = time.monotonic() + 60
        while (await server.llm.engine_state()).running:
            assert time.monotonic() < ends
            await asyncio.sleep(0.01)
        with pytest.raises(ReaderTooSlowError):
            while True:
                tokens += _num_tokens(await anext(job))
        return tokens

    most = MAX_HELD // server.llm.vocab_size
    assert most < NUM_COMPLETIONS * MAX_TOKENS / 2, "there is much more to come than may wait"
    assert most / 2 < server.run(scenario()) < NUM_COMPLETIONS * MAX_TOKENS


def _num_tokens(output: RequestOutput) -> int:
    return sum(len(completion.token_ids) for completion in output.outputs)


def test_streams_go_on_when_the_engine_is_killed(server: Server) -> None:
    """kill -9 under 50 streams, in the middle: every stream ends with the tokens it would have had."""
    options = {"max_tokens": 200, "n": 1, "stop": [], "logprobs": None, "prompt_logprobs": None}

    async def fifty(kill: bool) -> list[Any]:
        streams = asyncio.gather(*(joined(server.llm, number, **options) for number in range(50)))
        if kill:
            while not any(entry.token_ids for entry in server.llm._supervisor._logic.journal):
                await asyncio.sleep(0.01)
            os.kill(server.llm.engine_pid, signal.SIGKILL)
        return list(await streams)

    restarts = server.llm.num_restarts
    undisturbed = server.run(fifty(kill=False))
    disturbed = server.run(fifty(kill=True))
    assert server.llm.num_restarts == restarts + 1
    assert disturbed == undisturbed
    assert {reason for _, _, reason in disturbed} == {"length"}


def test_values_are_given_when_the_engine_is_killed(server: Server) -> None:
    """kill -9 when the first of many prompts has its values: the others have theirs from the next engine."""

    async def one(number: int) -> Any:
        given = [5 + number % 90, *range(10, 300)]
        outputs = [each async for each in server.llm.encode(given, PoolingParams(task="embed"), f"values-{number}")]
        return outputs[0].outputs.data

    async def many(kill: bool) -> Any:
        jobs = [asyncio.ensure_future(one(number)) for number in range(100)]
        await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        if kill:
            assert list(server.llm._supervisor._logic.journal), "some have none yet"
            os.kill(server.llm.engine_pid, signal.SIGKILL)
        return np.stack(await asyncio.gather(*jobs))

    restarts = server.llm.num_restarts
    undisturbed = server.run(many(kill=False))
    assert np.array_equal(server.run(many(kill=True)), undisturbed)
    assert server.llm.num_restarts == restarts + 1 and server.llm._outputs.num_unfinished() == 0


def test_leaving_a_stream_ends_its_request(server: Server) -> None:
    async def look_and_leave() -> int:
        job = server.llm.generate([5, 6, 7], SamplingParams(max_tokens=400, ignore_eos=True), "left")
        async for _ in job:
            break
        await job.aclose()
        while (state := await server.llm.engine_state()).running:
            await asyncio.sleep(0.02)
        return len(state.running) + len(state.waiting) + sum(owner >= 2 for owner in state.block_owners)

    assert server.run(look_and_leave()) == 0


def test_abort_gives_one_last_output(server: Server) -> None:
    async def abort() -> list[RequestOutput]:
        outputs = []
        async for output in server.llm.generate([5, 6], SamplingParams(max_tokens=400, ignore_eos=True), "gone"):
            outputs.append(output)
            if len(outputs) == 3:
                await server.llm.abort("gone")
        return outputs

    outputs = server.run(abort())
    assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"


def test_a_slow_reader_gets_fewer_outputs_and_all_of_the_text(server: Server) -> None:
    async def read_slowly() -> tuple[int, str]:
        pieces = []
        async for output in server.llm.generate(prompt(1), params(1, RequestOutputKind.DELTA), "slow"):
            pieces.append(output.outputs[0].text)
            while (await server.llm.engine_state()).running:
                await asyncio.sleep(0.01)
        return len(pieces), "".join(pieces)

    count, text = server.run(read_slowly())
    assert count < 20, "the engine had said all 24 tokens when the second piece was read"
    assert text == server.run(joined(server.llm, 1))[1]


def test_bad_requests_disturb_nobody(server: Server) -> None:
    async def ask(bad_prompt: Any, bad_params: SamplingParams) -> None:
        async for _ in server.llm.generate(bad_prompt, bad_params, "bad"):
            pass

    with pytest.raises(InvalidRequestError, match="empty"):
        server.run(ask({"prompt_token_ids": []}, SamplingParams()))
    with pytest.raises(InvalidRequestError, match="logits_processors"):
        server.run(ask([5], SamplingParams(logits_processors=[lambda output, logits: logits])))
    assert server.run(last(server.llm, 0)).finished


@pytest.fixture
def own_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that no other process uses; its path is short, as sockets' paths must be."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_the_channel_has_no_name_that_another_user_could_open(tiny_model: Callable[[str], Path], own_tmp: Path) -> None:
    made = Server(tiny_model("llama"))
    assert list(own_tmp.iterdir()) == []
    made.close()


def test_an_engine_that_keeps_dying_is_given_up(tiny_model: Callable[[str], Path]) -> None:
    async def keep_killing(llm: AsyncLLM) -> str:
        endless = asyncio.ensure_future(joined(llm, 0, max_tokens=480))
        killed = set()
        while not llm.dead.is_set():
            if llm.engine_pid and llm.engine_pid not in killed:  # before it can produce anything
                killed.add(llm.engine_pid)
                os.kill(llm.engine_pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        with pytest.raises(EngineDeadError):
            await llm.check_health()
        with pytest.raises(EngineDeadError) as error:
            await endless
        return str(error.value)

    made = Server(tiny_model("llama"))
    assert "3 times" in made.run(keep_killing(made.llm))
    made.close()


def test_options_at_fault_are_said_and_not_retried(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    async def start() -> None:
        await AsyncLLM.start(EngineArgs(model=str(tiny_model("llama")), max_model_len=256, num_gpu_blocks_override=3))

    with pytest.raises(EngineDeadError, match="max_model_len"):
        asyncio.run(start())


def test_a_tokenizer_may_lie_in_a_folder_of_its_own(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    """Without a model beside it, or one beside the model."""
    model = Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))
    apart = tmp_path / "tokenizer"
    apart.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).rename(apart / name)

    async def said() -> str:
        llm = await AsyncLLM.start(EngineArgs(model=str(model), tokenizer=str(apart), **OPTIONS))
        try:
            outputs = [each async for each in llm.generate("the dog", SamplingParams(temperature=0), "0")]
            return outputs[-1].outputs[0].text
        finally:
            await llm.shutdown(drain=False)

    with LLM(str(tiny_model("llama")), **OPTIONS) as whole:
        (expected,) = whole.generate(["the dog"], SamplingParams(temperature=0), use_tqdm=False)
    assert asyncio.run(said()) == expected.outputs[0].text != ""


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    copy = Path(shutil.copytree(tiny_model("llama"), tmp_path / "copy"))
    content = json.loads((copy / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {f"not in the model {number}": 10_000 + number for number in range(5_000)}
    (copy / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="vocabulary"):
        asyncio.run(AsyncLLM.start(EngineArgs(model=str(copy), max_model_len=256, num_gpu_blocks_override=500)))


FRONT = """
import asyncio, sys
from cadence.config.args import EngineArgs
from cadence.entrypoints.async_llm import AsyncLLM

async def main():
    llm = await AsyncLLM.start(EngineArgs(model=sys.argv[1], max_model_len=256, num_gpu_blocks_override=500))
    print(llm.engine_pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_an_engine_does_not_outlive_its_front(tiny_model: Callable[[str], Path], own_tmp: Path) -> None:
    command = [sys.executable, "-c", FRONT, str(tiny_model("llama"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        engine = int(front.stdout.readline())
        front.kill()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{engine}").exists()
    assert not list(own_tmp.glob("cadence-*"))
