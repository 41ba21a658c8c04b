"""Beam search, budgets, repetitions and logprobs by id over the server, as the offline engine gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from cadence import LLM, BeamSearchParams, SamplingParams
from tests.server.fakes_chat import openai_client
from tests.server.helpers import ServerProcess
from tests.server.test_completions_real import MESSAGES, PROMPT, complete

pytestmark = pytest.mark.warm


@pytest.fixture(scope="module")
def client(tiny_server: ServerProcess) -> openai.OpenAI:
    return openai_client(tiny_server)


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> Iterator[LLM]:
    with LLM(str(tiny_model("llama")), max_model_len=512) as llm:
        yield llm


def ask(client: openai.OpenAI, extra: dict[str, Any], **fields: Any) -> Any:
    given = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, **fields}
    return client.chat.completions.create(**given, extra_body={"return_token_ids": True, **extra})


def test_beams_are_those_of_the_offline_search(client: openai.OpenAI, llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=0.5)
    wanted = llm.beam_search([PROMPT], params)[0].sequences
    extra = {"use_beam_search": True, "ignore_eos": False, "length_penalty": 0.5}
    found = complete(client, n=3, max_tokens=6, logprobs=2, extra=extra)
    length = found.usage.prompt_tokens
    for choice, beam in zip(found.choices, wanted, strict=True):
        tokens = beam.tokens[length:]
        shown = tokens[:-1] if beam.finish_reason == "stop" else tokens
        assert choice.token_ids == shown and choice.finish_reason == beam.finish_reason
        assert choice.text == llm.get_tokenizer().decode(shown)
        own = [beam.logprobs[number][token].logprob for number, token in enumerate(shown)]
        assert choice.logprobs.token_logprobs == pytest.approx(own, abs=1e-4)
    assert found.usage.completion_tokens == sum(len(choice.token_ids) for choice in found.choices)


def test_beams_of_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    extra = {"use_beam_search": True, "ignore_eos": True}
    whole = ask(client, extra, n=2, logprobs=True, top_logprobs=1)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 2 and [len(choice.token_ids) for choice in whole.choices] == [8, 8]
    first = whole.choices[0].logprobs.content[0]
    assert first.top_logprobs[0].token == first.token
    streamed = {0: "", 1: ""}
    for chunk in ask(client, extra, n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert list(streamed.values()) == texts
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=2, n=2, temperature=0.7, extra_body={"use_beam_search": True}
    )
    assert raw.headers["x-cadence-ignored"] == "temperature"


def test_beams_wider_than_the_cap_on_logprobs(client: openai.OpenAI) -> None:
    assert len(complete(client, n=16, max_tokens=2, extra={"use_beam_search": True}).choices) == 16


def test_logprobs_of_given_tokens(client: openai.OpenAI, llm: LLM) -> None:
    ids = [40, 7, 200]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprob_token_ids=ids)
    wanted = llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]
    extra = {"logprob_token_ids": ids, "return_tokens_as_token_ids": True}
    found = complete(client, temperature=0, max_tokens=4, logprobs=1, extra=extra).choices[0]
    assert wanted.logprobs is not None
    for position, named in zip(wanted.logprobs, found.logprobs.top_logprobs, strict=True):
        assert named == pytest.approx({f"token_id:{t}": entry.logprob for t, entry in position.items()}, abs=1e-4)
    content = ask(client, {**extra, "ignore_eos": True}, temperature=0, logprobs=True).choices[0].logprobs.content
    for entry in content:
        assert {other.token for other in entry.top_logprobs} == {entry.token, *(f"token_id:{token}" for token in ids)}
    parts = ask(client, {**extra, "ignore_eos": True}, temperature=0, logprobs=True, stream=True)
    streamed = [entry for chunk in parts if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert streamed == content


def test_repetitions_end_an_answer(client: openai.OpenAI, llm: LLM) -> None:
    fields: dict[str, Any] = {"temperature": 0.3, "seed": 3, "max_tokens": 60}
    detection = {"max_pattern_size": 4, "min_count": 2}
    extra = {"allowed_token_ids": [10, 11, 12], "repetition_detection": detection}
    params = SamplingParams(**fields, **extra, ignore_eos=True)
    wanted = llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]
    found = complete(client, **fields, extra=extra).choices[0]
    assert wanted.finish_reason == "repetition" and found.token_ids == list(wanted.token_ids)
    assert (found.finish_reason, found.stop_reason) == ("repetition", "repetition_detected")
    *_, last = ask(client, {**extra, "ignore_eos": True}, **fields, stream=True)
    assert last.choices[0].finish_reason == "repetition"


def test_budgets_of_reasoning(tiny_model: Callable[[str], Path], llm: LLM) -> None:
    """The tiny model has no tag in its vocabulary: the end is several tokens long."""
    end = llm.get_tokenizer().encode("</think>", add_special_tokens=False)
    assert len(end) > 1
    flags = ("--served-model-name", "tiny", "--max-model-len", "512", "--reasoning-parser", "deepseek_r1")
    with ServerProcess(tiny_model("llama"), *flags) as server:
        client = openai_client(server)
        free = ask(client, {"ignore_eos": True}, temperature=0, max_tokens=20).choices[0].token_ids
        for budget in (0, 3, 6):
            extra = {"thinking_token_budget": budget, "ignore_eos": True}
            answer = ask(client, extra, temperature=0, max_tokens=20)
            ids = answer.choices[0].token_ids
            assert ids[:budget] == free[:budget] and ids[budget : budget + len(end)] == end
            assert answer.choices[0].message.content
            assert bool(answer.choices[0].message.reasoning) is (budget > 0)
            chunks = list(ask(client, extra, temperature=0, max_tokens=20, stream=True))
            assert [token for chunk in chunks[1:] for token in chunk.choices[0].token_ids] == ids
        other = ask(client, {"thinking_token_budget": 0, "ignore_eos": True}, max_tokens=4, n=2, seed=1)
        assert all(choice.token_ids[0] == end[0] for choice in other.choices)
        city = {"type": "string", "enum": ["Oslo", "Rome"]}
        schema = {"type": "object", "properties": {"city": city}, "required": ["city"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "visit", "parameters": schema}}]
        called = ask(client, {}, tools=tools, tool_choice="required", max_tokens=160, n=4, seed=2, temperature=1)
        assert all(choice.message.tool_calls and choice.message.reasoning for choice in called.choices)


def test_a_budget_without_a_format_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="--reasoning-parser") as caught:
        ask(client, {"thinking_token_budget": 3})
    assert caught.value.param == "thinking_token_budget"
    assert ask(client, {"thinking_token_budget": -1}).choices
