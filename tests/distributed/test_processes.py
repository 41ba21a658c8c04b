"""Workers in processes of their own: the same outputs to the bit, errors as they were, and nothing is left of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.core.lora_request import LoRARequest
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.device.probe import probe_caps
from cadence.engine.llm_engine import LLMEngine
from cadence.executor.interface.opened import OpenExecutor, Processors
from cadence.executor.local.processes import ProcessExecutor, open_processes
from tests.helpers.adapters import make_adapter
from tests.helpers.processes import connections_of, family_of

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "num_gpu_blocks_override": 400,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 8,
    "enable_lora": True,
    "async_scheduling": True,
}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "seed": 4, "n": 2, "top_p": 0.9},
    {"temperature": 0, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 0.9, "seed": 8, "stop": ["a", "e"]},
    {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "min_tokens": 4},
    {"temperature": 0, "structured_outputs": {"regex": "[a-z ]{3,}[0-9]?"}},
    {"temperature": 1.0, "seed": 5, "logit_bias": {5: 4.0}, "bad_words": ["the"]},
]


def open_ranks(ranks: int, kind: str, resolve: Any, processors: Processors) -> OpenExecutor:
    caps = probe_caps(kind)
    return open_processes(resolve(caps), caps, processors, replicas=ranks)


def requests() -> list[tuple[str, list[int], SamplingParams]]:
    made = []
    for number in range(3 * len(PARAMS)):
        options = {"max_tokens": 20, "ignore_eos": True, **PARAMS[number % len(PARAMS)]}
        if "structured_outputs" in options:
            options = {**options, "structured_outputs": StructuredOutputsParams(**options["structured_outputs"])}
        prompt = [5 + number, 6, 7, 8 + number % 5] * (1 + number % 7 * 4)
        made.append((f"{number}", prompt, SamplingParams(**options)))
    return made


def outputs(engine: LLMEngine, adapter: LoRARequest) -> dict[str, Any]:
    """Of all requests at once, two of them with an adapter; one more is aborted on the way."""
    for request_id, prompt, params in requests():
        engine.add_request(request_id, prompt, params)
        if int(request_id) % 8 < 2:
            engine.add_request(f"{request_id} adapted", prompt, params, lora_request=adapter)
    engine.add_request("victim", [5, 6, 7], SamplingParams(max_tokens=200, ignore_eos=True, temperature=0))
    found: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.request_id == "victim" and not output.finished and len(output.outputs[0].token_ids) >= 3:
                engine.abort_request("victim")
            elif output.finished and output.request_id != "victim":
                found[output.request_id] = seen(output)
    return found


def seen(output: RequestOutput) -> Any:
    told = [(c.index, list(c.token_ids), c.text, c.finish_reason, c.stop_reason, c.logprobs) for c in output.outputs]
    return told, output.prompt_logprobs


def executor_of(engine: LLMEngine) -> ProcessExecutor:
    executor = engine._core._executor
    assert isinstance(executor, ProcessExecutor)
    return executor


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def adapter(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> LoRARequest:
    folder = make_adapter(directory, tmp_path_factory.mktemp("adapter") / "one")
    return LoRARequest("one", 1, str(folder))


@pytest.fixture(scope="module")
def expected(directory: Path, adapter: LoRARequest) -> dict[str, Any]:
    args = EngineArgs(model=str(directory), **{**OPTIONS, "async_scheduling": False})
    with LLMEngine.from_engine_args(args) as engine:
        return outputs(engine, adapter)


@pytest.fixture(scope="module")
def two_ranks(directory: Path) -> Iterator[LLMEngine]:
    """Two ranks that compute the same."""
    args = EngineArgs(model=str(directory), distributed_executor_backend="mp", **OPTIONS)
    with LLMEngine.from_engine_args(args, new_executor=partial(open_ranks, 2)) as engine:
        yield engine


def test_two_ranks_give_the_outputs_of_one_process(
    two_ranks: LLMEngine, adapter: LoRARequest, expected: dict[str, Any]
) -> None:
    assert outputs(two_ranks, adapter) == expected


def test_ranks_have_cores_of_their_own(two_ranks: LLMEngine) -> None:
    places = [os.sched_getaffinity(pid) for pid in executor_of(two_ranks).pids]
    if len(os.sched_getaffinity(0)) > 1:
        assert not places[0] & places[1]


def test_no_process_listens_beyond_this_machine(two_ranks: LLMEngine) -> None:
    listening = [
        connection
        for connection in connections_of(family_of(os.getpid()))
        if connection.status == psutil.CONN_LISTEN and not connection.laddr.ip.startswith(("127.", "::1"))
    ]
    assert not listening


def test_functions_are_refused_with_a_sentence(two_ranks: LLMEngine, directory: Path) -> None:
    function = lambda prompt, output, logits: logits  # noqa: E731
    with pytest.raises(InvalidRequestError, match="distributed_executor_backend='uni'"):
        two_ranks.add_request("x", [5], SamplingParams(logits_processors=[function]))
    with pytest.raises(ConfigError, match="distributed_executor_backend='uni'"):
        LLM(str(directory), distributed_executor_backend="mp", logits_processors=[function], **OPTIONS)


def test_one_worker_with_drafts_and_bursts(two_ranks: LLMEngine, directory: Path) -> None:
    """As users ask for it; and when it is shut down nothing is left. Other processes have been started before."""
    options = {**OPTIONS, "speculative_config": DRAFTS, "enable_lora": False}
    prompts = [[5 + number, 6, 7, 8] * 3 for number in range(6)]
    params = [SamplingParams(temperature=number % 2, seed=number, max_tokens=40) for number in range(6)]
    with LLM(str(directory), **{**options, "async_scheduling": False}) as llm:
        wanted = [seen(output) for output in llm.generate(prompts, params, use_tqdm=False)]
    before, fds = psutil.Process().children(recursive=True), os.listdir("/proc/self/fd")
    with LLM(str(directory), distributed_executor_backend="mp", **options) as llm:
        assert [seen(output) for output in llm.generate(prompts, params, use_tqdm=False)] == wanted
    assert psutil.Process().children(recursive=True) == before
    assert len(os.listdir("/proc/self/fd")) == len(fds)


def test_one_that_nobody_shuts_down_ends_with_the_garbage(
    directory: Path, monkeypatch: pytest.MonkeyPatch, two_ranks: LLMEngine
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    before = psutil.Process().children(recursive=True)
    holder: list[Any] = [LLM(str(directory), distributed_executor_backend="mp", **OPTIONS)]
    assert psutil.Process().children(recursive=True) != before
    holder.append(holder)  # no count of references falls to zero
    del holder
    gc.collect()
    assert psutil.Process().children(recursive=True) == before and not raised


def test_errors_of_loading_are_those_of_one_process(two_ranks: LLMEngine, directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    before, raised = psutil.Process().children(recursive=True), []
    for backend in ("uni", "mp"):
        with pytest.raises(Exception) as error:
            LLM(str(tmp_path), distributed_executor_backend=backend, skip_tokenizer_init=True, **OPTIONS)
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]
    assert psutil.Process().children(recursive=True) == before
