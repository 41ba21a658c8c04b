"""Values that no engine can take are 400 with the field as the client called it, on every endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.fakes_chat import FailingLLM
from tests.server.helpers import RunningApp, ServerProcess

Serve = Callable[..., RunningApp]
JSON = {"content-type": "application/json"}
USER = [{"role": "user", "content": "hi"}]
BASE: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "to be", "max_tokens": 2},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": USER, "max_tokens": 2},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
}
INTEGERS = {
    "/v1/completions": ["max_tokens", "min_tokens", "top_k", "logprobs", "n", "seed", "stream_interval", "priority",
                        "truncate_prompt_tokens", "prompt_logprobs", "best_of"],
    "/v1/chat/completions": ["max_completion_tokens", "top_logprobs", "min_tokens", "top_k", "seed"],
    "/v1/responses": ["max_output_tokens", "top_k", "min_tokens"],
    "/v1/messages": ["max_tokens", "top_k"],
}  # fmt: skip
NUMBERS = ["1e400", "NaN", "-1e400", str(2**64), "1" + "0" * 400, "9" * 5000, "1.5", '"x"', '"1e2"', "true", "[]"]


def ask(app: RunningApp | ServerProcess, path: str, **raw: str) -> tuple[int, dict[str, Any]]:
    """Fields as JSON text, beside those the endpoint needs."""
    fields = {name: json.dumps(value) for name, value in BASE[path].items()} | raw
    body = "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"
    with app.client() as client:
        reply = client.post(path, content=body.encode(), headers=JSON)
    return reply.status_code, reply.json()


def told(path: str, answer: dict[str, Any]) -> str:
    """The field an error names; Anthropic's have no place for it but the message."""
    error = answer["error"]
    return str(error["message"] if path.startswith("/v1/messages") else error["param"])


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve()


@pytest.mark.parametrize("path", INTEGERS)
def test_integers_out_of_range(app: RunningApp, path: str) -> None:
    for field in INTEGERS[path]:
        more = {"logprobs": "true"} if field == "top_logprobs" else {}
        for number in NUMBERS:
            if (field, number) == ("logprobs", "true"):  # how chats ask for them
                continue
            status, answer = ask(app, path, **{field: number}, **more)
            assert status == 400 and field in told(path, answer), (field, number[:30], answer)
    assert not app.llm.started


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "frequency_penalty", "repetition_penalty"])
def test_floats_out_of_range(app: RunningApp, field: str) -> None:
    for number in ("1e400", "NaN", "-Infinity", "1" + "0" * 400, "-1e308", '"x"', '"nan"'):
        status, answer = ask(app, "/v1/completions", **{field: number})
        assert status == 400 and answer["error"]["param"] == field, (number[:30], answer)


def test_values_beyond_what_matters_are_taken(app: RunningApp) -> None:
    assert ask(app, "/v1/completions", top_k=str(2**63 - 1), stop='["e"]')[0] == 200
    for field in ("temperature", "repetition_penalty"):
        assert ask(app, "/v1/completions", **{field: "1e308"})[0] == 200
    assert ask(app, "/v1/completions", temperature="-0.0")[0] == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
def test_numbers_and_booleans_are_read_as_what_they_stand_for(app: RunningApp, path: str) -> None:
    """As pydantic reads them for vLLM: some clients send everything as strings, others all numbers as floats."""
    for number in ('"3"', "3.0", '"3.0"', '" 3 "'):
        status, answer = ask(app, path, max_tokens=number, temperature='"0.5"', top_k="5.0", top_p='"0.9"')
        assert status == 200, answer
        usage = answer["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) == 3
    for word, streams in (('"true"', True), ("1", True), ('"False"', False), ('"0"', False), ("0.0", False)):
        with app.client() as client:
            body = json.dumps(BASE[path])[:-1] + f', "stream": {word}}}'
            reply = client.post(path, content=body.encode(), headers=JSON)
        assert reply.headers["content-type"].startswith("text/event-stream") is streams, (word, reply.text)


def test_names_are_those_the_client_sent(app: RunningApp) -> None:
    cases: list[tuple[str, dict[str, str], str]] = [
        ("/v1/chat/completions", {"logprobs": "true", "top_logprobs": "21"}, "top_logprobs"),
        ("/v1/chat/completions", {"max_completion_tokens": "4", "min_tokens": "5"}, "max_completion_tokens"),
        ("/v1/chat/completions", {"max_tokens": "4", "min_tokens": "5"}, "max_tokens"),
        ("/v1/chat/completions", {"messages": json.dumps([{"role": "user", "content": "x " * 2000}])}, "messages"),
        ("/v1/responses", {"max_output_tokens": "4", "min_tokens": "5"}, "max_output_tokens"),
        ("/v1/responses", {"input": json.dumps("x " * 2000)}, "input"),
        ("/v1/messages", {"stop_sequences": '[""]'}, "stop_sequences"),
        ("/v1/completions", {"prompt": "[100000]"}, "prompt"),
    ]
    for path, fields, name in cases:
        status, answer = ask(app, path, **fields)
        assert status == 400 and name in str(answer["error"]), (fields, answer)
        if not path.startswith("/v1/messages"):
            assert answer["error"]["param"] in (*fields, name)


@pytest.mark.parametrize("key", ["9" * 5000, "-1", "²", "١", "", " 5", "5.0", "1e3", str(2**64), "512", "5_0", "0x5"])
def test_keys_of_logit_bias(app: RunningApp, key: str) -> None:
    status, answer = ask(app, "/v1/completions", logit_bias=json.dumps({key: 1}))
    assert status == 400 and answer["error"]["param"] == "logit_bias" and len(str(answer)) < 500, answer


def test_a_token_biased_twice(app: RunningApp) -> None:
    status, answer = ask(app, "/v1/completions", logit_bias='{"5": 1, "05": 2}')
    assert status == 400 and "token 5 twice" in answer["error"]["message"]
    assert ask(app, "/v1/completions", logit_bias='{"5": 1, "6": 2}')[0] == 200


def test_ids_beyond_the_vocabulary_are_not_detokenised(app: RunningApp) -> None:
    for tokens, where in (([5, 512], "tokens[1]"), ([-1], "tokens[0]"), ([2**32], "tokens[0]"), ([2**70], "tokens[0]")):
        status, answer = ask(app, "/detokenize", tokens=json.dumps(tokens))
        assert status == 400 and answer["error"]["param"] == where and "vocabulary" in answer["error"]["message"]
    assert ask(app, "/detokenize", tokens="[511]")[0] == 200 and ask(app, "/detokenize", tokens="[]")[0] == 200


def test_what_an_engine_died_of_is_not_told(serve: Serve, fake_model: Any) -> None:
    app = serve()
    app.llm.die("RuntimeError: CUDA error at /home/somebody/kernel.cu")
    status, answer = ask(app, "/v1/completions")
    assert status == 503 and "CUDA" not in str(answer) and answer["error"]["reason"] == "engine_unavailable"
    broken = serve(FailingLLM(fake_model, after=0, error=KeyError("a secret")))
    status, answer = ask(broken, "/v1/completions")
    assert status == 500 and "secret" not in str(answer) and "KeyError" not in str(answer)


def test_words_of_white_space_do_no_harm(tiny_server: ServerProcess) -> None:
    """They are barred as they stand: an engine's decoder finds nothing wrong with what the front lets through."""
    expected = ask(tiny_server, "/v1/completions", temperature="0")
    for words in ('[" "]', r'["\n"]', r'["\t \n"]', '["  x"]', r'["\u00a0"]', r'["\u200b", " "]'):
        status, answer = ask(tiny_server, "/v1/completions", bad_words=words, temperature="0")
        assert status in (200, 400) and (status == 200 or answer["error"]["param"] == "bad_words"), (words, answer)
    assert ask(tiny_server, "/v1/completions", temperature="0")[1]["choices"] == expected[1]["choices"]
    assert ask(tiny_server, "/v1/completions", bad_words='[""]')[1]["error"]["param"] == "bad_words"


def test_no_token_left_to_choose(tiny_server: ServerProcess) -> None:
    word = json.dumps(ask(tiny_server, "/detokenize", tokens="[9]")[1]["prompt"])
    cases = [
        ({"allowed_token_ids": "[9]", "bad_words": f"[{word}]"}, "bad_words"),
        ({"allowed_token_ids": "[9, 10]", "stop_token_ids": "[9, 10]", "min_tokens": "1"}, "min_tokens"),
        ({"allowed_token_ids": "[]"}, "allowed_token_ids"),
        ({"allowed_token_ids": "[1000000]"}, "allowed_token_ids"),
    ]
    for fields, param in cases:
        status, answer = ask(tiny_server, "/v1/completions", **fields)
        assert status == 400 and answer["error"]["param"] == param, (fields, answer)
    late = {"allowed_token_ids": "[9]", "bad_words": f"[{word[:-1] + word[1:]}]", "max_tokens": "5"}
    status, answer = ask(tiny_server, "/v1/completions", **late)
    assert status == 400 and "no token can be chosen" in answer["error"]["message"], answer
    assert answer["error"]["reason"] == "no_token_left"
    assert ask(tiny_server, "/v1/completions", allowed_token_ids="[9]", logit_bias='{"9": -100}')[0] == 200


@pytest.mark.parametrize("fields", [{"prompt": ["a"] * 1000}, {"prompt": "a", "n": 128}], ids=["prompts", "n"])
def test_long_lists_are_for_few_completions(serve: Serve, fields: dict[str, Any]) -> None:
    """Each completion has a copy of the parameters."""
    words = [f"{'e' * 1000}{number}" for number in range(256)]
    with serve().client() as client:
        answer = client.post("/v1/completions", json={**fields, "bad_words": words, "temperature": 1, "seed": 1})
    assert answer.status_code == 400 and "at most 2000000 entries and characters" in answer.json()["error"]["message"]


def test_a_prompt_that_never_fits_keeps_nobody_out(serve: Serve) -> None:
    """It counts for no more than the longest that fits, and is told that it is too long, not to come again."""
    app = serve({"delay": 0.2}, max_queued_tokens=2000)
    long = {"prompt": "to be or not to be " * 10, "max_tokens": 40, "stream": True}
    with app.client() as client, client.stream("POST", "/v1/completions", json=long) as running:
        lines = running.iter_lines()  # letting go of it would end the stream
        assert next(lines)
        assert app.state.admission.completions == 1
        assert client.post("/v1/completions", json={"prompt": "word " * 200_000}).status_code == 400


def test_a_field_is_named_whatever_it_is_called(tiny_server: ServerProcess) -> None:
    """Also one that is called as the part of a request that has it."""
    with tiny_server.client() as client:
        reply = client.post("/rerank", content=b'{"query": {"text": NaN}, "documents": ["a"]}', headers=JSON)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "query.text"
