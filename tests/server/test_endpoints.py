"""Endpoints beside OpenAI's own: tokens in and out, batches of chats, SageMaker, load reports, development."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fakes_chat import MODEL, FailingLLM, sse
from tests.server.test_completions import Serve

PROMPT = [{"role": "user", "content": "hi"}]
IDS = [10, 11, 12, 13]


# /inference/v1/generate


def tokens_body(**fields: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields.pop("sampling_params", {})}
    return {"token_ids": IDS, "sampling_params": sampling, **fields}


def test_tokens_in_tokens_out(serve: Serve) -> None:
    app = serve()
    with app.client() as client:
        reply = client.post("/inference/v1/generate", json=tokens_body(request_id="mine", model=MODEL))
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        expected = client.post("/v1/completions", json={
            "prompt": IDS, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
        }).json()  # fmt: skip
    (choice,) = answer["choices"]
    assert choice["token_ids"] == expected["choices"][0]["token_ids"] and choice["finish_reason"] == "length"
    assert answer["request_id"] == "mine" and answer["model"] == MODEL and choice["logprobs"] is None
    assert answer["usage"]["prompt_tokens"] == 4 and answer["usage"]["completion_tokens"] == 4


def test_tokens_as_they_come(serve: Serve) -> None:
    body = tokens_body(
        stream=True,
        stream_options={"include_usage": True},
        sampling_params={"logprobs": 2, "n": 2, "temperature": 1, "seed": 3},
    )
    with serve().client() as client:
        whole = client.post("/inference/v1/generate", json={**body, "stream": False}).json()
        events = sse(client.post("/inference/v1/generate", json=body).text)
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 8
    for index in range(2):
        mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        ids = [token for choice in mine for token in choice["token_ids"]]
        assert ids == whole["choices"][index]["token_ids"] and mine[-1]["finish_reason"] == "length"
        logprobs = [entry for choice in mine for entry in choice["logprobs"]["content"]]
        assert [entry["token"] for entry in logprobs] == [f"token_id:{token}" for token in ids]
        assert logprobs == whole["choices"][index]["logprobs"]["content"]


WRONG_TOKENS = [
    ({"token_ids": []}, "token_ids"),
    ({"token_ids": [1, "a"]}, "token_ids[1]"),
    ({"token_ids": [-1]}, "token_ids"),
    ({"token_ids": [999_999]}, "token_ids"),
    ({"sampling_params": {"temperature": "hot"}}, "sampling_params.temperature"),
    ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
    ({"sampling_params": {"n": 10_000}}, "sampling_params.n"),
    ({"features": {"a": 1}}, "features"),
    ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
]


def test_wrong_tokens_are_named(serve: Serve) -> None:
    with serve().client() as client:
        for fields, param in WRONG_TOKENS:
            reply = client.post("/inference/v1/generate", json=tokens_body(**fields))
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), (fields, reply.text)
        reply = client.post("/inference/v1/generate", json=tokens_body(sampling_params={"detokenize": True, "pace": 3}))
        assert reply.status_code == 200
        assert set(reply.headers["x-cadence-ignored"].split(", ")) == {
            "sampling_params.detokenize",
            "sampling_params.pace",
        }


# /v1/chat/completions/batch


def test_a_choice_for_each_conversation(serve: Serve) -> None:
    conversations = [[{"role": "user", "content": f"number {n}"}] for n in range(5)]
    app = serve()
    with app.client() as client:
        reply = client.post("/v1/chat/completions/batch", json={"messages": conversations, "max_tokens": 30})
        assert reply.status_code == 200, reply.text
        alone = [
            client.post("/v1/chat/completions", json={"messages": one, "max_tokens": 30}).json()
            for one in conversations
        ]
    answer = reply.json()
    assert [choice["index"] for choice in answer["choices"]] == list(range(5))
    assert [choice["message"] for choice in answer["choices"]] == [one["choices"][0]["message"] for one in alone]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == sum(one["usage"][name] for one in alone)
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    app.settle()
    assert app.state.admission.accepted == 6 and app.state.admission.in_flight == 0


def test_a_batch_fails_as_a_whole(serve: Serve, fake_model: Any) -> None:
    app = serve(FailingLLM(fake_model, after=0))
    with app.client() as client:
        reply = client.post("/v1/chat/completions/batch", json={"messages": [PROMPT, PROMPT], "max_tokens": 3})
    assert reply.status_code == 500
    app.settle()
    assert app.state.admission.failed == 1 and app.state.admission.in_flight == 0


WRONG_BATCHES = [
    ({"messages": PROMPT}, "messages[0]"),
    ({"messages": []}, "messages"),
    ({"messages": [[]]}, "messages[0]"),
    ({"messages": [PROMPT, ["x"]]}, "messages[1][0]"),
    ({"stream": True}, "stream"),
    ({"n": 2}, "n"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"temperature": "hot"}, "temperature"),
]


def test_wrong_batches_are_named(serve: Serve) -> None:
    with serve().client() as client:
        for fields, param in WRONG_BATCHES:
            reply = client.post("/v1/chat/completions/batch", json={"messages": [PROMPT], **fields})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), (fields, reply.text)


# /invocations, /ping


def test_invocations_go_by_the_shape_of_the_body(serve: Serve) -> None:
    with serve().client() as client:
        chat = {"messages": PROMPT, "max_tokens": 3}
        assert client.post("/invocations", json=chat).json()["object"] == "chat.completion"
        assert client.post("/invocations", json={"prompt": "a", "max_tokens": 3}).json()["object"] == "text_completion"
        stream = client.post("/invocations", json={**chat, "stream": True})
        assert stream.headers["content-type"].startswith("text/event-stream") and "[DONE]" in stream.text
        for body in ({"input": "a"}, [], 3):
            assert client.post("/invocations", json=body).status_code == 400
        broken = client.post("/invocations", content=b"{", headers={"content-type": "application/json"})
        assert broken.status_code == 400 and "not valid JSON" in broken.text
        assert client.get("/ping").status_code == client.post("/ping").status_code == 200


# Load reports


@pytest.mark.parametrize("stream", [False, True])
def test_load_reports_for_balancers(serve: Serve, stream: bool) -> None:
    body = {"messages": PROMPT, "max_tokens": 3, "stream": stream}
    with serve().client() as client:

        def report(wanted: str) -> str | None:
            headers = {"endpoint-load-metrics-format": wanted}
            reply = client.post("/v1/chat/completions", json=body, headers=headers)
            assert reply.status_code == 200
            return reply.headers.get("endpoint-load-metrics")

        # the fake engine says that a quarter of its cache is held
        assert report("TEXT") == "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=0.0"
        kind, _, content = (report("json") or "").partition(" ")
        assert kind == "JSON"
        assert json.loads(content) == {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 0.0}}
        assert report("BIN") is None
        assert "endpoint-load-metrics" not in client.post("/v1/chat/completions", json=body).headers


def test_load_counts_requests(serve: Serve) -> None:
    with serve().client() as client:
        assert client.get("/load").json() == {"server_load": 0}


# Flags


def test_the_tokenizers_settings_are_told_where_asked_for(serve: Serve) -> None:
    with serve().client() as client:
        assert client.get("/tokenizer_info").status_code == 404
    with serve(enable_tokenizer_info_endpoint=True).client() as client:
        info = client.get("/tokenizer_info").json()
    assert info["tokenizer_class"] and "<|turn|>" in info["chat_template"]
    assert not any("file" in name for name in info)
    with serve(enable_tokenizer_info_endpoint=True, chat_template="{{ messages }}").client() as client:
        assert client.get("/tokenizer_info").json()["chat_template"] == "{{ messages }}"


def test_pauses(serve: Serve) -> None:
    app = serve(server_dev_mode=True)
    with app.client() as client:
        for query, expected in (
            ("", ("abort", True)),
            ("?mode=wait&clear_cache=false", ("wait", False)),
            ("?wait_for_inflight_requests=true", ("wait", True)),
        ):
            assert client.post(f"/pause{query}").json() == {"status": "paused"}
            assert app.llm.paused == expected and client.get("/is_paused").json() == {"is_paused": True}
            assert client.post("/resume").json() == {"status": "resumed"}
            assert client.get("/is_paused").json() == {"is_paused": False}


def test_sleeps(serve: Serve) -> None:
    app = serve(server_dev_mode=True)
    with app.client() as client:
        for query, level in (("", 1), ("?level=2", 2), ("?level=0", 0)):
            assert client.post(f"/sleep{query}").status_code == 200
            assert app.llm.slept == level and client.get("/is_sleeping").json() == {"is_sleeping": True}
            assert client.post("/wake_up").status_code == 200
            assert app.llm.woken is None and client.get("/is_sleeping").json() == {"is_sleeping": False}
        assert app.llm.slept_after == "keep" and client.post("/sleep?mode=wait").status_code == 200
        assert app.llm.slept_after == "wait"
        client.post("/wake_up?tags=weights&tags=kv_cache")
        assert app.llm.woken == ["weights", "kv_cache"]
    with serve().client() as client:
        answer = client.post("/sleep")
        assert answer.status_code == 404 and "--server-dev-mode" in answer.text


def test_development_endpoints_are_closed_unless_opened(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve().client() as client:
        assert client.get("/server_info").status_code == 404
        for path in ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"):
            assert client.post(path).status_code == 404
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.setenv("VLLM_API_KEY", "do-not-tell")
    app = serve(server_dev_mode=True)
    with app.client() as client:
        text, plain = (client.get(f"/server_info?config_format={kind}") for kind in ("text", "json"))
        assert isinstance(text.json()["vllm_config"], str) and "max_model_len" in text.json()["vllm_config"]
        assert plain.json()["vllm_config"]["model"]["max_model_len"] == 1024
        assert plain.json()["vllm_env"]["VLLM_LOGGING_LEVEL"] == "INFO" and "do-not-tell" not in plain.text
        assert plain.json()["system_env"]["python"]
        assert client.get("/server_info?config_format=yaml").status_code == 400
        for query in ("", "?reset_running_requests=true"):
            assert client.post(f"/reset_prefix_cache{query}").json() == {"success": True}
        for path in ("/reset_mm_cache", "/reset_encoder_cache"):
            assert client.post(path).json() == {"success": True}
        assert app.llm.forgotten == 2
