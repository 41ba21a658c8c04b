"""Health, models, tokenizer and metrics endpoints, and the shape of errors."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from openai import NotFoundError, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from cadence.config.version import __version__
from cadence.entrypoints.server.http.missing_paths import why_missing
from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve(served_model_name=["small", "also/small"])


def error_of(reply: httpx.Response, status: int) -> dict[str, object]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "reason"} and error["message"]
    assert error["code"] == status
    return dict(error)


def test_health_and_version(app: RunningApp) -> None:
    with app.client() as client:
        for path in ("/livez", "/readyz", "/health", "/ping"):
            assert client.get(path).status_code == 200, path
        assert client.post("/ping").status_code == 200
        assert client.get("/version").json() == {"version": __version__}
        assert client.get("/load").json() == {"server_load": 0}


def test_readiness_follows_progress(app: RunningApp) -> None:
    with app.client() as client:
        app.llm.step_age = 1000.0
        assert client.get("/readyz").status_code == 200  # nothing runs: nothing is stuck
        app.state.admission.accepted += 1
        assert "no progress" in str(error_of(client.get("/readyz"), 503)["message"])
        assert client.get("/livez").status_code == 200
        app.llm.step_age = 0.5
        assert client.get("/health").status_code == 200
        app.llm.ready = False
        error_of(client.get("/health"), 503)


def test_readiness_while_draining(app: RunningApp) -> None:
    app.do(app.state.admission.drain)
    with app.client() as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == client.get("/health").status_code == 503


def test_models(app: RunningApp) -> None:
    client = OpenAI(base_url=app.url + "/v1", api_key="none", max_retries=0)
    cards = client.models.list().data
    assert [card.id for card in cards] == ["small", "also/small"]
    card = client.models.retrieve("also/small").model_dump()
    assert card["object"] == "model" and card["max_model_len"] == 1024 and card["root"] == "fake"
    assert card["parent"] is None and card["permission"][0]["object"] == "model_permission"
    with pytest.raises(NotFoundError) as caught:
        client.models.retrieve("large")
    assert caught.value.body["reason"] == "model_not_found" and caught.value.code == "404"
    assert caught.value.param == "model"


def test_tokenize_and_back(app: RunningApp) -> None:
    text = "The quick brown fox, señor 東京"
    with app.client() as client:
        reply = client.post("/tokenize", json={"model": "small", "prompt": text, "return_token_strs": True}).json()
        assert reply["tokens"] == app.llm.tokenizer.encode(text)
        assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"]) and reply["max_model_len"] == 1024
        back = client.post("/detokenize", json={"tokens": reply["tokens"]}).json()
        assert back == {"prompt": text}


def test_tokenize_messages(app: RunningApp) -> None:
    messages = [{"role": "user", "content": "hello"}]
    expected = app.llm.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    with app.client() as client:
        reply = client.post("/tokenize", json={"messages": messages}).json()
        assert reply["tokens"] == expected and reply["token_strs"] is None
        both = client.post("/tokenize", json={"messages": messages, "prompt": "x"})
        assert error_of(both, 400)["param"] == "prompt"
        own = client.post("/tokenize", json={"messages": messages, "chat_template": "{{ 1 }}"})
        assert error_of(own, 400)["param"] == "chat_template"
        assert error_of(client.post("/tokenize", json={"messages": [{"role": 3}]}), 400)["param"] == "messages[0].role"


def test_errors_name_the_field(app: RunningApp) -> None:
    with app.client() as client:
        missing = error_of(client.post("/detokenize", json={}), 400)
        assert missing["param"] == "tokens" and missing["type"] == "invalid_request_error"
        assert error_of(client.post("/detokenize", json={"tokens": [1, "x"]}), 400)["param"] == "tokens[1]"
        assert error_of(client.post("/detokenize", json={"tokens": [2**40]}), 400)["param"] == "tokens[0]"
        unknown = client.post("/detokenize", json={"tokens": [], "model": "x"})
        assert error_of(unknown, 404)["reason"] == "model_not_found"
        broken = client.post("/detokenize", content=b'{"tokens": ', headers={"content-type": "application/json"})
        assert error_of(broken, 400)["reason"] == "invalid_json"
        error_of(client.post("/detokenize"), 400)


def test_unknown_paths_and_methods(app: RunningApp) -> None:
    with app.client() as client:
        assert error_of(client.get("/v1/nothing"), 404)["reason"] == "not_found"
        error_of(client.get("/v1/models/"), 404)
        reply = client.delete("/v1/models")
        error_of(reply, 405)
        assert reply.headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/embeddings", "embeddings are given by /v1/embeddings"),
        ("/v1/moderations", "served by /classify"),
        ("/v1/audio/speech", "answers are text"),
        ("/v1/images/generations", "prompts and answers are text"),
        ("/v1/batches", "`cadence run-batch`"),
        ("/v1/threads/one/runs", "/v1/responses"),
        ("/sleep", "--server-dev-mode"),
    ],
)
def test_paths_that_are_not_there_yet_say_why(app: RunningApp, path: str, said: str) -> None:
    with app.client() as client:
        error = error_of(client.post(path, json={}), 404)
    assert said in error["message"] and error["reason"] == "not_implemented"


def test_no_path_is_both_there_and_missing(app: RunningApp) -> None:
    with app.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert paths and not [path for path in paths if why_missing(path)]


def test_anthropic_paths_have_anthropic_errors(app: RunningApp) -> None:
    with app.client() as client:
        reply = client.get("/v1/messages/of/nobody")
        assert reply.status_code == 404
        assert reply.json()["type"] == "error" and reply.json()["error"]["type"] == "not_found_error"


def test_bugs_are_500_without_details_and_logged_once(app: RunningApp, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise RuntimeError("a secret prompt")

    app.llm.get_metrics = broken  # type: ignore[assignment, method-assign]
    with app.client() as client:
        error = error_of(client.get("/metrics"), 500)
        assert error["type"] == "server_error" and "secret" not in str(error)
        assert client.get("/livez").status_code == 200
    assert [record.getMessage() for record in caplog.records if record.name == "cadence.server"] == [
        "GET /metrics failed"
    ]


def test_metrics_have_both_names_and_balance(app: RunningApp) -> None:
    admission = app.state.admission
    admission.accepted, admission.finished, admission.failed, admission.aborted = 10, 4, 2, 1
    with app.client() as client:
        reply = client.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    for name in ("num_requests_running", "kv_cache_usage_perc", "prompt_tokens", "request_success"):
        assert families[f"vllm:{name}"].type == families[f"cadence:{name}"].type
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert "vllm:generation_tokens_total{" in reply.text and 'le="+Inf"' in reply.text
    reasons = {sample.labels["finished_reason"] for sample in families["vllm:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "error", "repetition"}
    values = {name: families[f"cadence:http_requests_{name}"].samples[0].value for name in
              ("accepted", "finished", "failed", "aborted", "in_flight")}  # fmt: skip
    assert values["accepted"] == sum(values.values()) - values["accepted"] == 10


def test_openapi_says_400_and_never_422(app: RunningApp) -> None:
    with app.client() as client:
        schema = client.get("/openapi.json").json()
        for path in ("/docs", "/redoc"):  # our own page: see test_webui_static for what it may load
            page = client.get(path)
            assert page.headers["content-type"] == "text/html; charset=utf-8" and "page/docs.js" in page.text
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"] and "400" in operation["responses"], path


def test_docs_can_be_turned_off(serve: Serve) -> None:
    with serve(disable_fastapi_docs=True).client() as client:
        for path in ("/docs", "/redoc", "/openapi.json"):
            error_of(client.get(path), 404)


def test_request_ids(serve: Serve) -> None:
    with serve(enable_request_id_headers=True).client() as client:
        assert client.get("/livez", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
        made = client.get("/v1/nothing", headers={"X-Request-Id": "bad id"}).headers["x-request-id"]
        assert made != "bad id" and len(made) == 32


def test_cors_is_off_unless_asked_for(serve: Serve) -> None:
    ask = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    with serve().client() as client:
        assert "access-control-allow-origin" not in client.get("/livez", headers=ask).headers
        error_of(client.options("/tokenize", headers=ask), 405)
    with serve(allowed_origins=["http://page.example"], api_key=["k"]).client() as client:
        assert client.options("/tokenize", headers=ask).status_code == 200  # before any key
        allowed = client.get("/v1/models", headers=ask)
        assert allowed.status_code == 401 and allowed.headers["access-control-allow-origin"] == "http://page.example"


def test_root_path(serve: Serve) -> None:
    with serve(root_path="/proxy", api_key=["k"]).client() as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer k"}).status_code == 200
