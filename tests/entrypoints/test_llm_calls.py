"""The calls that programs written for vLLM make, on a tiny model."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import signal
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, AsyncEngineArgs, AsyncLLMEngine, EngineArgs, LLMEngine, RequestOutputKind, SamplingParams
from cadence.core.errors import ConfigError, EngineDeadError, InvalidRequestError, ModelNotFoundError
from cadence.core.lora_request import LoRARequest
from cadence.core.refusals import REFUSALS
from cadence.core.sampling_params import BeamSearchParams
from cadence.engine.text.logits_processors import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    RequestLogitsProcessor,
    process_dict_updates,
)
from tests.helpers.interrupts import no_collections

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256}


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> str:
    return str(tiny_model("llama"))


@pytest.fixture(scope="module")
def llm(directory: str) -> LLM:
    return LLM.from_engine_args(EngineArgs(directory, tensor_parallel_size=1, **OPTIONS))


def greedy(max_tokens: int = 6, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def tokens_of(outputs: list[Any]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_enqueued_prompts_wait_to_be_asked_for(llm: LLM) -> None:
    expected = tokens_of(llm.generate(["one", "two"], greedy(), use_tqdm=False))
    ids = [*llm.enqueue("one", greedy()), *llm.enqueue(["two"], greedy())]
    between = llm.generate("three", greedy(40), use_tqdm=False)  # the others finish meanwhile
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in outputs] == ids and len(set(ids)) == 2
    assert tokens_of(outputs) == expected and len(tokens_of(between)[0]) == 40
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_nothing_is_left_of_a_batch_with_a_bad_prompt(llm: LLM) -> None:
    expected = tokens_of(llm.generate("one", greedy(), use_tqdm=False))
    kept = llm.enqueue("one", greedy())
    message = {"role": "user", "content": "word " * 300}
    template = "{{ messages[0].content }}"
    for call in (
        lambda: llm.generate(["two", [7] * 300], greedy(), use_tqdm=False),
        lambda: llm.enqueue(["two", [7] * 300], greedy()),
        lambda: llm.chat([[{**message, "content": "a"}], [message]], greedy(), False, chat_template=template),
    ):
        with pytest.raises(InvalidRequestError, match="maximum context length is 256"):
            call()
        assert llm.llm_engine.get_num_unfinished_requests() == 1
    assert [output.request_id for output in llm.wait_for_completion(use_tqdm=False)] == kept
    assert tokens_of(llm.generate("one", greedy(), use_tqdm=False)) == expected


class _Pipe:
    """In the place of an engine's method: calls it, and has Ctrl-C pressed in the middle of one call."""

    def __init__(self, method: Callable[..., Any], at: int) -> None:
        self._method, self._calls_left = method, at

    def __call__(self, *args: Any, **options: Any) -> Any:
        self._calls_left -= 1
        if not self._calls_left:
            signal.raise_signal(signal.SIGINT)
        return self._method(*args, **options)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, as it does where Python was started at a terminal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with no_collections():
        yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("part", "method"), [("llm_engine", "add_request"), ("executor", "step"), ("executor", "result")]
)
def test_nothing_is_left_of_a_call_that_was_interrupted(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, part: str, method: str
) -> None:
    prompts = ["one", "two", "three"]
    expected = tokens_of(llm.generate(prompts, greedy(), use_tqdm=False))
    owner = llm.llm_engine if part == "llm_engine" else llm.llm_engine._core._executor  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, _Pipe(getattr(owner, method), at=2))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, greedy(), use_tqdm=False)
    assert llm.llm_engine.get_num_unfinished_requests() == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert tokens_of(llm.generate(prompts, greedy(), use_tqdm=False)) == expected


@pytest.mark.usefixtures("interruptible")
def test_nothing_is_left_of_a_wait_or_a_search_that_failed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(total: int, **options: object) -> Any:
        raise RuntimeError("no bar")

    llm.enqueue("one", greedy())
    with pytest.raises(RuntimeError, match="no bar"):
        llm.wait_for_completion(use_tqdm=broken)
    assert llm.wait_for_completion(use_tqdm=False) == [] and llm.llm_engine.get_num_unfinished_requests() == 0
    monkeypatch.setattr(llm.llm_engine, "add_request", _Pipe(llm.llm_engine.add_request, at=2))
    with pytest.raises(KeyboardInterrupt):
        llm.beam_search(["one", "two"], BeamSearchParams(beam_width=2, max_tokens=3))
    assert llm.llm_engine.get_num_unfinished_requests() == 0


def test_a_request_that_the_core_refuses_is_not_known(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: Any, engine: object) -> None:
        raise InvalidRequestError("no room for it", "prompt")

    engine = llm.llm_engine
    with monkeypatch.context() as patch:
        patch.setattr(engine._core, "add", refuse)
        with pytest.raises(InvalidRequestError, match="no room"):
            engine.add_request("x", "a", SamplingParams(n=2))
    assert engine.get_num_unfinished_requests() == 0


def test_prompts_as_tokens_in_the_older_form(llm: LLM) -> None:
    ids = [llm.get_tokenizer().encode(text) for text in ("some words", "others")]
    expected = tokens_of(llm.generate(["some words", "others"], greedy(), use_tqdm=False))
    assert tokens_of(llm.generate(prompt_token_ids=ids, sampling_params=greedy(), use_tqdm=False)) == expected
    with pytest.raises(InvalidRequestError, match="not both"):
        llm.generate("a", greedy(), prompt_token_ids=ids)
    with pytest.raises(InvalidRequestError, match="prompts must be"):
        llm.generate(sampling_params=greedy())


def test_tokenization_kwargs(llm: LLM) -> None:
    text = "a few words more than that"
    whole = llm.get_tokenizer().encode(text, add_special_tokens=False)
    options = {"add_special_tokens": False, "truncate_prompt_tokens": 3}
    output = llm.generate(text, greedy(), use_tqdm=False, tokenization_kwargs=options)[0]
    assert output.prompt == text and output.prompt_token_ids == whole[-3:]
    with pytest.raises(InvalidRequestError, match="padding is not supported"):
        llm.generate(text, greedy(), tokenization_kwargs={"padding": True})


def test_what_changes_nothing_is_named(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    assert llm.generate("a", greedy(), use_tqdm=False)[0].warnings == []
    caplog.set_level(logging.WARNING, "cadence.engine")
    params = greedy(extra_args={"gamma": 1, "delta": 2})
    for _ in range(2):
        output = llm.generate(["a", "b"], params, use_tqdm=False, priority=[0, 3])[1]
        assert output.warnings == [
            "priority has no effect: scheduling_policy is fair",
            "extra_args.gamma has no effect: nothing reads it",
            "extra_args.delta has no effect: nothing reads it",
        ]
    assert sum("extra_args.gamma" in record.message for record in caplog.records) == 1
    engine = llm.llm_engine
    engine.add_request("x", "a", greedy(), 12.5, trace_headers={"a": "b"}, session_id=None)
    warnings = [output.warnings for output in finish(engine)]
    assert [line.partition(" ")[0] for line in warnings[-1]] == ["arrival_time", "trace_headers"]


def finish(engine: LLMEngine) -> list[Any]:
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def test_without_text_no_token_is_spelled(llm: LLM) -> None:
    output = llm.generate("a b c", greedy(detokenize=False, logprobs=2, prompt_logprobs=1), use_tqdm=False)[0]
    positions = [*(output.outputs[0].logprobs or ()), *(output.prompt_logprobs or ())[1:]]
    assert len(positions) > 6 and output.outputs[0].text == ""
    assert all(entry.decoded_token is None for position in positions for entry in (position or {}).values())


def test_a_processor_may_read_extra_args(llm: LLM) -> None:
    params = greedy(extra_args={"a": 1}, logits_processors=[lambda ids, logits: logits])
    assert llm.generate("a", params, use_tqdm=False)[0].warnings == []


def test_a_reset_of_requests_that_run_changes_no_token(llm: LLM) -> None:
    expected = tokens_of(llm.generate("one two", greedy(150), use_tqdm=False))
    llm.llm_engine.add_request("x", "one two", greedy(150))
    for _ in range(4):
        llm.llm_engine.step()
    assert not llm.reset_prefix_cache() and llm.reset_prefix_cache(reset_running_requests=True)
    outputs = finish(llm.llm_engine)
    assert tokens_of(outputs[-1:]) == expected and outputs[-1].num_cached_tokens == 0


def test_refusals_come_without_our_frames(llm: LLM, directory: str, tmp_path: Path) -> None:
    broken = shutil.copytree(directory, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    long, question = [[7] * 300], [{"role": "user", "content": "a"}]
    for call in (
        lambda: LLM("/no/such/model"),
        lambda: LLM("smollm2", max_modl_len=3),
        lambda: LLM("smollm2", decode_context_parallel_size=2),
        lambda: LLM(str(broken), **OPTIONS),
        lambda: LLM.from_engine_args(EngineArgs("/no/such/model")),
        lambda: LLMEngine.from_engine_args(EngineArgs("/no/such/model")),
        lambda: AsyncLLMEngine.from_engine_args(AsyncEngineArgs("/no/such/model")),
        lambda: llm.generate(long, greedy()),
        lambda: llm.enqueue(long, greedy()),
        lambda: llm.chat(question, greedy(), chat_template="{{ raise_exception('no') }}"),
        lambda: llm.beam_search(long, BeamSearchParams(beam_width=2, max_tokens=2)),
        lambda: llm.embed(long),
        lambda: llm.encode(long, pooling_task="token_embed"),
        lambda: llm.classify("a"),
        lambda: llm.reward("a"),
        lambda: llm.score("a", long),
    ):
        with pytest.raises(REFUSALS) as caught:
            call()
        assert len(traceback.extract_tb(caught.value.__traceback__)) == 3  # this function, the lambda, and the call
        assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_what_would_change_the_answer_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="start it with enable_lora"):
        llm.generate("a", greedy(), lora_request=LoRARequest("sql", 1, "/adapter"))
    with pytest.raises(InvalidRequestError, match="mm_processor_kwargs cannot be used"):
        llm.generate("a", greedy(), mm_processor_kwargs={"crops": 4})
    with pytest.raises(InvalidRequestError, match="LLM has no option 'temperature'"):
        llm.generate("a", greedy(), temperature=1)
    assert llm.generate("a", greedy(), mm_processor_kwargs=None, use_tqdm=False)


@pytest.mark.parametrize("name", ["pause_generation", "start_weight_update"])
def test_methods_that_are_missing_say_why(llm: LLM, name: str) -> None:
    assert not hasattr(llm, name)
    with pytest.raises(AttributeError, match=f"LLM has no {name}: .{{20}}"):
        getattr(llm, name)()
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'spam'"):
        _ = llm.spam


def test_profiles_are_written_where_asked(directory: str, llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="needs LLM"):
        llm.start_profile()
    for wrong in ({"profiler": "proton"}, {"profiler": "torch"}, {"delay_iterations": 3}):
        with pytest.raises(ConfigError, match="profiler_config"):
            LLM(directory, profiler_config=wrong, **OPTIONS)
    config = {"profiler": "torch", "torch_profiler_dir": str(tmp_path / "traces"), "torch_profiler_use_gzip": False}
    with LLM(directory, profiler_config=config, **OPTIONS) as profiled:
        with pytest.raises(InvalidRequestError, match="no profile is being taken"):
            profiled.stop_profile()
        profiled.start_profile("mine")
        profiled.generate("a", greedy(), use_tqdm=False)
        profiled.stop_profile()
    (written,) = (tmp_path / "traces").iterdir()
    assert written.name.startswith("mine.") and json.loads(written.read_text())["traceEvents"]


def test_resolved_config(directory: str) -> None:
    config = EngineArgs(directory, **OPTIONS).create_engine_config()
    assert config.model.max_model_len == 256 and config.scheduler.policy == "fair"


# ---- logits processors given as classes


def keep_only(logits: torch.Tensor, token: int) -> torch.Tensor:
    kept = torch.full_like(logits, float("-inf"))
    kept[..., token] = logits[..., token]
    return kept


class OnlyToken(AdapterLogitsProcessor):
    """Each request has a processor of its own, or none."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        if not isinstance((params.extra_args or {}).get("token", 0), int):
            raise ValueError("token must be an integer")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        token = (params.extra_args or {}).get("token")
        return None if token is None else lambda output, logits: keep_only(logits, token)


class Countdown(LogitsProcessor):
    """Batch-wide: the k-th token of a request is `start - k`, by the outputs it was given to watch."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[int, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._rows, batch_update, self._state)

    def _state(self, params: SamplingParams, prompt: list[int] | None, output: list[int]) -> Any:
        start = (params.extra_args or {}).get("start")
        return None if start is None else (start, output)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (start, output) in self._rows.items():
            logits[row] = keep_only(logits[row], start - len(output))
        return logits


@pytest.fixture(scope="module")
def processed(directory: str) -> LLM:
    return LLM(directory, logits_processors=[OnlyToken, f"{__name__}:Countdown"], **OPTIONS)


def test_processor_classes_act_on_the_requests_that_ask(llm: LLM, processed: LLM) -> None:
    plain = tokens_of(llm.generate("some words", greedy(), use_tqdm=False))[0]
    asked = [greedy(extra_args={"token": 7}), greedy(), greedy(extra_args={"start": 30})]
    outputs = processed.generate(["some words"] * 3, asked, use_tqdm=False)
    assert tokens_of(outputs) == [[7] * 6, plain, [30, 29, 28, 27, 26, 25]]
    assert outputs[0].warnings == []


def test_n_completions_have_processors_of_their_own(processed: LLM) -> None:
    params = SamplingParams(n=2, max_tokens=4, ignore_eos=True, extra_args={"start": 40})
    completions = processed.generate("x", params, use_tqdm=False)[0].outputs
    assert [list(completion.token_ids) for completion in completions] == [[40, 39, 38, 37]] * 2


def test_a_processor_class_checks_parameters(processed: LLM) -> None:
    with pytest.raises(ValueError, match="token must be an integer"):
        processed.generate("x", greedy(extra_args={"token": "a"}), use_tqdm=False)
    assert processed.generate("x", greedy(), use_tqdm=False)  # serves on


def test_what_is_no_processor_is_refused(directory: str) -> None:
    for wrong in (3, dict, "no.such:thing", "nonsense"):
        with pytest.raises(ConfigError, match="logits_processors"):
            LLM(directory, logits_processors=[wrong], **OPTIONS)


# ---- AsyncLLMEngine


@pytest.fixture(scope="module")
def engine(directory: str) -> Iterator[AsyncLLMEngine]:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(directory, **OPTIONS), usage_context=None)
    yield engine
    engine.shutdown()


async def collect(stream: AsyncIterator[Any]) -> list[Any]:
    return [output async for output in stream]


def test_async_engine_streams_what_the_llm_gives(llm: LLM, engine: AsyncLLMEngine) -> None:
    expected = tokens_of(llm.generate(["one", "two"], greedy(12), use_tqdm=False))
    params = greedy(12, output_kind=RequestOutputKind.DELTA, extra_args={"a": 1})

    async def both() -> list[list[Any]]:
        streams = [engine.generate(prompt=text, sampling_params=params, request_id=text) for text in ("one", "two")]
        return await asyncio.gather(*map(collect, streams))

    for _ in range(2):  # another event loop each time
        for outputs, tokens in zip(asyncio.run(both()), expected, strict=True):
            assert [token for output in outputs for token in output.outputs[0].token_ids] == tokens
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            assert outputs[0].warnings == ["extra_args.a has no effect: nothing reads it"]


def test_leaving_or_aborting_a_stream_ends_its_request(engine: AsyncLLMEngine) -> None:
    async def leave() -> str | None:
        async for _ in engine.generate("x", greedy(200), "left"):
            break
        reason = None
        async for output in engine.generate("x", greedy(200), "aborted"):
            reason = output.outputs[0].finish_reason
            await engine.abort("aborted")
        return reason

    assert asyncio.run(leave()) == "abort"
    assert tokens_of([asyncio.run(collect(engine.generate("x", greedy(), "left")))[-1]])  # the id is free again


def test_async_engine_refuses_as_the_llm_does(engine: AsyncLLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match="LoRA"):
        asyncio.run(collect(engine.generate("x", greedy(), "a", lora_request=LoRARequest("a", 1))))
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        asyncio.run(collect(engine.generate({"prompt_token_ids": []}, greedy(), "b")))
    with pytest.raises(InvalidRequestError, match="mode must be one of abort, wait, keep, not 'freeze'"):
        asyncio.run(engine.pause_generation(mode="freeze"))
    assert engine.is_running and not engine.errored
    assert asyncio.run(engine.reset_prefix_cache(reset_running_requests=True, reset_connector=False))


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_async_engine_paused(engine: AsyncLLMEngine, mode: str) -> None:
    async def scenario() -> tuple[list[Any], list[Any]]:
        first = engine.generate("x", greedy(30), "runs")
        seen = [await anext(first)]
        reading = asyncio.ensure_future(collect(first))
        await engine.pause_generation(**({"wait_for_inflight_requests": True} if mode == "wait" else {"mode": mode}))
        assert await engine.is_paused()
        if mode != "keep":
            seen += await reading
        late = asyncio.ensure_future(collect(engine.generate("x", greedy(3), "waits")))
        assert not (await asyncio.wait({late}, timeout=0.1))[0]
        await engine.resume_generation()
        assert not await engine.is_paused()
        return seen + (await reading if mode == "keep" else []), await late

    before, after = asyncio.run(scenario())
    assert before[-1].outputs[0].finish_reason == ("abort" if mode == "abort" else "length")
    assert after[-1].outputs[0].finish_reason == "length" and after[-1].num_cached_tokens == 0


def test_async_engine_that_cannot_start_says_why() -> None:
    with pytest.raises(ModelNotFoundError):
        AsyncLLMEngine.from_engine_args(AsyncEngineArgs("/no/such/model"))


def test_async_engine_is_shut_down_by_a_plain_call(engine: AsyncLLMEngine) -> None:
    """The last test of this engine."""
    engine.shutdown()
    engine.shutdown()
    assert engine.is_stopped and not engine.errored
    with pytest.raises(EngineDeadError, match="shut down"):
        asyncio.run(collect(engine.generate("x", greedy(), "a")))
