"""/v1/completions as the official client sees it. The fake model repeats its prompt, round and round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.server.fakes_chat import MODEL, PROMPT, openai_client
from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve()


@pytest.fixture
def client(app: RunningApp) -> openai.OpenAI:
    return openai_client(app)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    extra = {name: fields.pop(name) for name in list(fields) if name in EXTRA}
    return client.completions.create(**{"model": MODEL, "prompt": PROMPT, "max_tokens": 6, **fields}, extra_body=extra)


EXTRA = (
    "top_k", "min_p", "repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "skip_special_tokens", "allowed_token_ids", "bad_words", "prompt_logprobs", "priority", "cache_salt",
    "return_token_ids", "return_tokens_as_token_ids", "add_special_tokens", "truncate_prompt_tokens", "truncation_side",
    "request_id", "metadata", "service_tier", "store", "use_beam_search", "length_penalty",
    "spaces_between_special_tokens",
)  # fmt: skip


def joined(stream: Any) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts


def test_text_in_text_out(client: openai.OpenAI) -> None:
    answer = complete(client)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.model == MODEL
    assert answer.choices[0].text == "The quick brown fox jumps over"
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (16, 6, 22)


def test_sixteen_tokens_unless_said_otherwise(client: openai.OpenAI) -> None:
    assert client.completions.create(model=MODEL, prompt=PROMPT).usage.completion_tokens == 16


def test_every_shape_of_prompt(client: openai.OpenAI, app: RunningApp) -> None:
    ids = app.llm.tokenizer.encode(PROMPT)
    expected = complete(client).choices[0].text
    assert complete(client, prompt=ids).choices[0].text == expected
    two = complete(client, prompt=[PROMPT, "A sequence of tokens"])
    assert [(choice.index, choice.text) for choice in two.choices] == [
        (0, expected),
        (1, "A sequence of tokensA sequence"),
    ]
    assert two.usage.prompt_tokens == 16 + 4 and two.usage.completion_tokens == 12
    assert [choice.text for choice in complete(client, prompt=[ids, ids]).choices] == [expected] * 2


def test_choices_are_numbered_prompt_by_prompt(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "A sequence of tokens"]
    whole = complete(client, prompt=prompts, n=2)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[0].text == whole.choices[1].text != whole.choices[2].text
    streamed = joined(complete(client, prompt=prompts, n=2, stream=True))
    assert streamed == {choice.index: choice.text for choice in whole.choices}


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"n": 3}, {"stop": ["jumps"]}, {"echo": True, "max_tokens": 0}])
def test_a_stream_says_what_the_whole_says(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    whole = complete(client, **fields)
    assert joined(complete(client, stream=True, **fields)) == {choice.index: choice.text for choice in whole.choices}


def test_usage_ends_a_stream_when_asked_for(client: openai.OpenAI) -> None:
    assert all(chunk.usage is None for chunk in complete(client, stream=True))
    *chunks, last = complete(client, stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage.total_tokens == 22


def test_usage_with_every_chunk(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(complete(client, stream=True, stream_options=options))
    assert [chunk.usage.completion_tokens for chunk in chunks] == [1, 2, 3, 4, 5, 6, 6]


def test_stop_strings_and_tokens(client: openai.OpenAI, app: RunningApp) -> None:
    stopped = complete(client, stop="jumps").choices[0]
    assert (stopped.text, stopped.finish_reason, stopped.stop_reason) == ("The quick brown fox ", "stop", "jumps")
    assert complete(client, stop=["jumps"], include_stop_str_in_output=True).choices[0].text.endswith("fox jumps")
    token = app.llm.tokenizer.encode(" brown")[0]
    by_token = complete(client, stop_token_ids=[token]).choices[0]
    assert (by_token.text, by_token.finish_reason) == ("The quick", "stop")


def test_logprobs_in_four_lists(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=2).choices[0]
    lists = choice.logprobs
    assert lists.tokens == ["The", " quick", " brown", " fox", " jumps", " over"]
    assert lists.token_logprobs == [-0.5] * 6
    assert [top[token] for top, token in zip(lists.top_logprobs, lists.tokens)] == [-0.5] * 6
    assert all(len(top) == 2 for top in lists.top_logprobs)
    for token, offset in zip(lists.tokens, lists.text_offset):
        assert choice.text.startswith(token, offset)


def test_echoed_prompts_have_logprobs_too(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=1, echo=True, max_tokens=1).choices[0]
    assert choice.text == PROMPT + "The"
    assert choice.logprobs.token_logprobs == [None] + [-0.5] * 16
    assert choice.logprobs.top_logprobs[0] is None
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset):
        assert choice.text.startswith(token, offset)


def test_a_prompt_may_be_scored_alone(client: openai.OpenAI) -> None:
    answer = complete(client, logprobs=1, echo=True, max_tokens=0)
    assert answer.choices[0].text == PROMPT
    assert len(answer.choices[0].logprobs.tokens) == 16
    assert answer.usage.completion_tokens == 0


def test_streamed_logprobs_are_those_of_the_whole(client: openai.OpenAI) -> None:
    whole = complete(client, logprobs=2, echo=True).choices[0].logprobs
    parts = [chunk.choices[0].logprobs for chunk in complete(client, logprobs=2, echo=True, stream=True)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for part in parts for entry in getattr(part, name)] == getattr(whole, name)


def test_text_offsets_count_characters_not_bytes(client: openai.OpenAI) -> None:
    choice = complete(client, prompt="東京は日本の首都です。", logprobs=0, echo=True, max_tokens=1).choices[0]
    offsets = choice.logprobs.text_offset
    assert offsets == sorted(offsets) and offsets[-1] == len("東京は日本の首都です。")


def test_tokens_as_ids_and_ids_beside_the_text(client: openai.OpenAI, app: RunningApp) -> None:
    ids = app.llm.tokenizer.encode(PROMPT)
    choice = complete(client, logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True).choices[0]
    assert choice.logprobs.tokens == [f"token_id:{token}" for token in ids[:6]]
    assert choice.token_ids == ids[:6] and choice.prompt_token_ids == ids
    chunks = list(complete(client, return_token_ids=True, stream=True))
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == ids[:6]
    assert chunks[0].choices[0].prompt_token_ids == ids


def test_prompt_logprobs(client: openai.OpenAI, app: RunningApp) -> None:
    ids = app.llm.tokenizer.encode(PROMPT)
    first, *others = complete(client, prompt_logprobs=1).choices[0].prompt_logprobs
    assert first is None and len(others) == 15
    assert others[0][str(ids[1])] == {"logprob": -0.5, "rank": 1, "decoded_token": " quick"}


def test_prompts_can_be_cut(client: openai.OpenAI) -> None:
    assert complete(client, truncate_prompt_tokens=2).choices[0].text == " not mind not mind not mind"
    right = complete(client, truncate_prompt_tokens=2, truncation_side="right")
    assert right.choices[0].text == "The quickThe quickThe quick"
    assert right.usage.prompt_tokens == 2
    assert complete(client, prompt=PROMPT * 100, truncate_prompt_tokens=-1).usage.prompt_tokens == 1024 - 6


def test_fields_that_change_nothing_here(client: openai.OpenAI) -> None:
    fields = {
        "user": "me", "seed": 3, "best_of": 1, "logit_bias": {"5": 1}, "presence_penalty": 0.5,
        "top_p": 0.9, "temperature": 0.7, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2,
        "ignore_eos": True, "skip_special_tokens": False, "spaces_between_special_tokens": False, "bad_words": ["cat"],
        "allowed_token_ids": [5, 6], "priority": 1, "cache_salt": "s", "request_id": "mine", "metadata": {"a": "b"},
        "service_tier": "auto", "store": False, "use_beam_search": False, "length_penalty": 1.0, "suffix": "",
        "add_special_tokens": True, "frequency_penalty": 0.5,
    }  # fmt: skip
    answer = complete(client, **fields)
    assert answer.choices[0].text == "The quick brown fox jumps over"
    assert answer.id == "cmpl-mine"


def test_the_requests_id_is_the_answers(client: openai.OpenAI) -> None:
    headers = {"X-Request-Id": "abc-123"}
    assert client.completions.create(model=MODEL, prompt="a", extra_headers=headers).id == "cmpl-abc-123"
