"""/v1/completions/render and /v1/chat/completions/render: the token ids and parameters that a request stands for."""

from __future__ import annotations

from typing import Any

from tests.server.fakes_chat import MODEL, PROMPT
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve

USER = [{"role": "user", "content": PROMPT}]
REQUEST = {
    *("request_id", "token_ids", "assistant_tokens_mask", "token_offsets", "features", "sampling_params", "model"),
    *("stream", "stream_options", "cache_salt", "priority", "kv_transfer_params"),
}
SAMPLED = {"temperature": 0.7, "seed": 5, "max_tokens": 6, "ignore_eos": True, "logit_bias": {"7": 1.5}, "stop": ["@@"]}


def post(app: RunningApp, path: str, **fields: Any) -> Any:
    with app.client() as client:
        reply = client.post(path, json=fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_rendered_chat_generates_what_the_chat_says(serve: Serve) -> None:
    app = serve()
    told = post(app, "/v1/chat/completions/render", messages=USER, model=MODEL, **SAMPLED)
    assert set(told) == REQUEST and told["request_id"].startswith("chatcmpl-") and told["model"] == MODEL
    assert told["sampling_params"].items() >= SAMPLED.items()
    said = post(app, "/v1/chat/completions", messages=USER, return_token_ids=True, **SAMPLED)
    assert told["token_ids"] == said["prompt_token_ids"]
    (choice,) = post(app, "/inference/v1/generate", **told)["choices"]
    assert choice["token_ids"] == said["choices"][0]["token_ids"]


def test_rendered_prompts_generate_what_the_completion_says(serve: Serve) -> None:
    app = serve()
    told = post(app, "/v1/completions/render", prompt=["Hello", "Good bye"], **SAMPLED)
    said = post(app, "/v1/completions", prompt=["Hello", "Good bye"], return_token_ids=True, **SAMPLED)
    assert len(told) == 2 and all(set(one) == REQUEST for one in told)
    assert len({one["request_id"] for one in told}) == 2
    for one, choice in zip(told, said["choices"], strict=True):
        assert one["request_id"].startswith("cmpl-") and one["token_ids"] == choice["prompt_token_ids"]
        (made,) = post(app, "/inference/v1/generate", **one)["choices"]
        assert made["token_ids"] == choice["token_ids"]


def test_nothing_is_generated_and_the_stream_is_for_who_generates(serve: Serve) -> None:
    app = serve()
    options = {"include_usage": True}
    told = post(app, "/v1/chat/completions/render", messages=USER, stream=True, stream_options=options, cache_salt="a")
    assert (told["stream"], told["stream_options"], told["cache_salt"]) == (True, options, "a")
    with app.client() as client:
        assert "cadence:http_requests_accepted_total 0" in client.get("/metrics").text


def test_offsets_are_told_where_they_are_asked_for(serve: Serve) -> None:
    app = serve()
    text = "Hello, wörld."
    (plain,) = post(app, "/v1/completions/render", prompt=text)
    (told,) = post(app, "/v1/completions/render", prompt=text, return_token_offsets=True)
    assert plain["token_offsets"] is None and plain["token_ids"] == told["token_ids"]
    assert len(told["token_offsets"]) == len(told["token_ids"])
    assert "".join(text[begin:end] for begin, end in dict.fromkeys(map(tuple, told["token_offsets"]))) == text
    (ids,) = post(app, "/v1/completions/render", prompt=[told["token_ids"]], return_token_offsets=True)
    assert ids["token_ids"] == told["token_ids"] and ids["token_offsets"] is None
    chat = post(app, "/v1/chat/completions/render", messages=USER, return_token_offsets=True)
    assert len(chat["token_offsets"]) == len(chat["token_ids"])


WRONG = [
    ("/v1/completions/render", {"prompt": "a", "model": "none"}, 404, "model"),
    ("/v1/chat/completions/render", {"messages": USER, "model": "none"}, 404, "model"),
    ("/v1/chat/completions/render", {"messages": USER, "use_beam_search": True}, 400, "use_beam_search"),
    ("/v1/completions/render", {"prompt": "a", "temperature": -1}, 400, "temperature"),
    ("/v1/completions/render", {"prompt": "a", "max_tokens": 10**6}, 400, "max_tokens"),
]


def test_what_cannot_be_generated_is_not_rendered(serve: Serve) -> None:
    with serve().client() as client:
        for path, body, status, param in WRONG:
            reply = client.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), reply.text


def test_tokens_asked_for_by_id_have_their_logprobs(serve: Serve) -> None:
    asked = {"max_tokens": 1, "logprob_token_ids": [5, 6]}
    answer = post(serve(), "/inference/v1/generate", token_ids=[3, 4], sampling_params=asked)
    (place,) = answer["choices"][0]["logprobs"]["content"]
    assert place["token"].startswith("token_id:") and place["top_logprobs"]


def test_the_chosen_token_is_among_the_top_ones(serve: Serve) -> None:
    asked = {"max_tokens": 3, "logprobs": 0, "ignore_eos": True}
    (choice,) = post(serve(), "/inference/v1/generate", token_ids=[3, 4], sampling_params=asked)["choices"]
    for place, token in zip(choice["logprobs"]["content"], choice["token_ids"], strict=True):
        assert [one["token"] for one in place["top_logprobs"]] == [place["token"]] == [f"token_id:{token}"]
