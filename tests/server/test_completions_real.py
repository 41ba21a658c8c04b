"""The completion and chat routes over the real engine: a server process with a tiny random model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.server.fakes_chat import openai_client
from tests.server.helpers import ServerProcess

PROMPT = "the quick brown fox jumps over the lazy dog"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 1.0, "seed": 7, "n": 3, "top_p": 0.9},
    {"temperature": 0, "presence_penalty": 1.0, "logit_bias": {"20": 5}},
]


@pytest.fixture(scope="module")
def client(tiny_server: ServerProcess) -> openai.OpenAI:
    return openai_client(tiny_server)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    ignoring = {"ignore_eos": True, "return_token_ids": True, **fields.pop("extra", {})}
    return client.completions.create(
        **{"model": "tiny", "prompt": PROMPT, "max_tokens": 12, **fields}, extra_body=ignoring
    )


@pytest.mark.parametrize("fields", SETTINGS)
def test_a_stream_gives_the_tokens_of_the_whole(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    whole = {choice.index: (choice.text, choice.token_ids) for choice in complete(client, **fields).choices}
    streamed: dict[int, tuple[str, list[int]]] = {}
    for chunk in complete(client, stream=True, **fields):
        for choice in chunk.choices:
            text, ids = streamed.get(choice.index, ("", []))
            streamed[choice.index] = (text + choice.text, ids + choice.token_ids)
    assert streamed == whole and len(whole) == fields.get("n", 1)


def test_prompts_of_one_request_are_as_if_alone(client: openai.OpenAI) -> None:
    prompts = [f"{PROMPT} {number}" for number in range(6)]
    together = complete(client, prompt=prompts, temperature=0).choices
    alone = [complete(client, prompt=prompt, temperature=0).choices[0] for prompt in prompts]
    assert [choice.token_ids for choice in together] == [choice.token_ids for choice in alone]


def test_requests_at_once_are_as_if_alone(client: openai.OpenAI) -> None:
    def ask(number: int) -> str:
        chunks = complete(client, prompt=f"{number} {PROMPT}", temperature=0, stream=True, max_tokens=20)
        return "".join(chunk.choices[0].text for chunk in chunks)

    alone = [ask(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == alone


def test_logprobs_are_those_of_the_tokens(client: openai.OpenAI) -> None:
    choice = complete(client, temperature=0, logprobs=3, echo=True).choices[0]
    lists = choice.logprobs
    prompt_length = len(choice.prompt_token_ids)
    assert len(lists.tokens) == prompt_length + 12
    for token, logprob, top in list(zip(lists.tokens, lists.token_logprobs, lists.top_logprobs))[prompt_length:]:
        assert logprob == max(top.values()) == top[token] < 0  # greedy: the likeliest
    assert lists.token_logprobs[0] is None and all(logprob < 0 for logprob in lists.token_logprobs[1:])


def test_a_stop_token_is_the_stop_reason(client: openai.OpenAI) -> None:
    ids = complete(client, temperature=0).choices[0].token_ids
    stopped = complete(client, temperature=0, extra={"stop_token_ids": [ids[4]]}).choices[0]
    first = ids.index(ids[4])
    assert stopped.token_ids == ids[: first + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", ids[4])


def test_a_chat_is_its_prompt_continued(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True, "ignore_eos": True}
    answer: Any = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=10, temperature=0, logprobs=True, top_logprobs=2, extra_body=extra
    )
    same = complete(client, prompt=answer.prompt_token_ids, temperature=0, max_tokens=10).choices[0]
    assert answer.choices[0].token_ids == same.token_ids
    assert answer.choices[0].message.content == same.text
    for entry in answer.choices[0].logprobs.content:
        assert entry.logprob == entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
    chunks = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=10, temperature=0, stream=True, extra_body=extra
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == same.text


def test_errors_of_the_engine_are_the_clients(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        complete(client, prompt=[5] * 600)
    assert bad.value.param == "prompt"
    with pytest.raises(openai.BadRequestError) as bad:
        complete(client, prompt=[100_000], stream=True)
    assert "out of range" in str(bad.value)
