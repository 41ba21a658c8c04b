"""Several models at one address, with real engines: the same tokens as each served alone, whichever come and go."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import APIStatusError, NotFoundError, OpenAI

from tests.helpers.processes import children_of
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.warm, pytest.mark.engine]

FLAGS = ("--max-model-len", "256", "--kv-cache-memory-bytes", "400M", "--cpu-threads", "1")
FAMILIES = {"a": "llama", "b": "gemma2"}
PROMPTS = ["to be or not to be", "the slow river runs to the sea", "one two three"]
ONE_ENGINE = "800M"  # what one such engine is said to take, and less than two do


def openai(server: ServerProcess, key: str = "none") -> OpenAI:
    return OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=240)


def chat(client: OpenAI, model: str, prompt: str, **options: Any) -> str:
    given = {"max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}, **options}
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": prompt}], **given)
    assert answer.model == model
    return answer.choices[0].message.content or ""


@pytest.fixture(scope="module")
def alone(tiny_model: Callable[[str], Path]) -> dict[tuple[str, str], str]:
    """What each model says when it is served alone, by its name and the prompt."""
    found = {}
    for name, family in FAMILIES.items():
        with ServerProcess(tiny_model(family), *FLAGS, "--served-model-name", name) as server:
            client = openai(server)
            found |= {(name, prompt): chat(client, name, prompt) for prompt in PROMPTS}
    assert found["a", PROMPTS[0]] != found["b", PROMPTS[0]]
    return found


@pytest.fixture(scope="module")
def models_file(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """`a` and `b`, and one whose weights are none."""
    folder = tmp_path_factory.mktemp("models")
    broken = folder / "broken"
    broken.mkdir()
    for path in tiny_model("llama").iterdir():
        content = b"no weights" if path.suffix == ".safetensors" else path.read_bytes()
        (broken / path.name).write_bytes(content)
    models = [
        {"name": "a", "model": str(tiny_model("llama")), "aliases": ["first"], "load": "start"},
        {"name": "b", "model": str(tiny_model("gemma2")), "options": {"max-model-len": 128}},
        {"name": "broken", "model": str(broken)},
    ]
    file = folder / "models.json"
    file.write_text(json.dumps({"models": models}))
    return str(file)


@pytest.fixture(scope="module")
def server(models_file: str) -> Iterator[ServerProcess]:
    """With memory for one model."""
    flags = ("--models-memory", ONE_ENGINE, *FLAGS, "--api-key", "secret")
    with ServerProcess(f"--models={models_file}", *flags) as process:
        yield process
        print(process.output())  # shown where a test fails


@pytest.fixture
def client(server: ServerProcess) -> OpenAI:
    return openai(server, "secret")


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client(headers={"Authorization": "Bearer secret"}) as client:
        yield client


def states(wire: httpx.Client) -> dict[str, str]:
    return {card["id"]: card["state"] for card in wire.get("/v1/models").json()["data"]}


def engines(server: ServerProcess) -> list[psutil.Process]:
    return children_of(server.process.pid, "core_process", recursive=True)


def wait_for(condition: Callable[[], Any], seconds: float = 240.0) -> Any:
    ends = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.02)
    return found


def test_alternating_requests_with_memory_for_one(
    client: OpenAI, server: ServerProcess, wire: httpx.Client, alone: dict[tuple[str, str], str]
) -> None:
    for number in range(6):
        name, prompt = "ab"[number % 2], PROMPTS[number // 2 % 3]
        assert chat(client, name, prompt) == alone[name, prompt]
        assert states(wire)[name] == "ready" and list(states(wire).values()).count("ready") <= 3
        assert len(engines(server)) == 1
    cards = {card["id"]: card for card in wire.get("/v1/models").json()["data"]}
    assert cards["a"]["loads"]["count"] >= 3 and cards["b"]["loads"]["count"] >= 3


def test_who_answers_to_which_name(client: OpenAI, wire: httpx.Client, alone: dict[tuple[str, str], str]) -> None:
    prompt = PROMPTS[0]
    assert chat(client, "first", prompt) == alone["a", prompt]
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = wire.post("/v1/chat/completions", json=body).json()
    assert answer["model"] == "a" and answer["choices"][0]["message"]["content"] == alone["a", prompt]
    asked = wire.post("/tokenize?model=b", json={"prompt": prompt}).json()
    assert asked["max_model_len"] == 128
    with pytest.raises(NotFoundError, match=r"The model `c` does not exist. There are: a, first, b, broken\."):
        chat(client, "c", prompt)
    bad = wire.post("/v1/completions", json={"model": 5, "prompt": "x"})
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "model"
    for content, status in ((b"{", 400), (b"", 400), (b"[1]", 400)):
        reply = wire.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert reply.status_code == status, reply.text
    assert wire.get("/v1/chat/completions").status_code == 405 and wire.post("/v1/nothing", json={}).status_code == 404


def test_a_model_that_cannot_be_loaded_harms_no_other(
    client: OpenAI, wire: httpx.Client, alone: dict[tuple[str, str], str]
) -> None:
    for _ in range(2):
        with pytest.raises(APIStatusError) as refused:
            chat(client, "broken", PROMPTS[0])
        assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"] == "10"
    card = wire.get("/v1/models/broken").json()
    assert card["state"] == "failed" and card["failure"] and card["memory"]["held"] == 0 and card["loads"]["count"] == 0
    assert wire.get("/readyz").status_code == 200
    assert chat(client, "b", PROMPTS[1]) == alone["b", PROMPTS[1]]
    reply = wire.post("/v1/models/broken/load")
    assert reply.status_code == 503 and reply.json()["error"]["reason"] == "model_failed"


def test_loading_and_unloading_by_command(server: ServerProcess, wire: httpx.Client) -> None:
    with server.client() as stranger:
        assert stranger.post("/v1/models/a/unload").status_code == 401
        assert stranger.get("/v1/models").status_code == 401 and stranger.get("/readyz").status_code == 200
    assert wire.post("/v1/models/b/load").json()["state"] == "ready"
    pid = wait_for(lambda: engines(server))[0].pid
    assert wire.get("/engine/state?model=b").json()["model"] == "b"
    assert wire.get("/engine/state?model=a").status_code == 409
    unloaded = wire.post("/v1/models/b/unload").json()
    assert unloaded["unloaded"] and unloaded["state"] == "unloaded" and unloaded["memory"]["held"] == 0
    assert not psutil.pid_exists(pid) and not engines(server)
    assert not wire.post("/v1/models/b/unload").json()["unloaded"]
    assert wire.post("/v1/models/nobody/load").status_code == 404
    assert wire.post("/models/load", json={"model": "b"}).json()["state"] == "ready"
    assert wire.post("/models/unload", json={"model": "b"}).json()["state"] == "unloaded"
    assert wire.post("/models/unload", json={"name": "b"}).status_code == 400
    assert wire.post("/v1/models/first/load").json()["id"] == "first" and states(wire)["a"] == "ready"


def test_ten_clients_ask_for_a_cold_model_and_one_of_them_leaves(
    server: ServerProcess, client: OpenAI, wire: httpx.Client, alone: dict[tuple[str, str], str]
) -> None:
    wire.post("/v1/models/b/unload")
    before = wire.get("/v1/models/b").json()["loads"]["count"]
    body = {"model": "b", "messages": [{"role": "user", "content": PROMPTS[2]}], "max_tokens": 12}
    with pytest.raises(httpx.ReadTimeout):
        wire.post("/v1/chat/completions", json=body, timeout=0.05)  # its load has begun, and goes on
    with ThreadPoolExecutor(10) as pool:
        said = list(pool.map(lambda _: chat(openai(server, "secret"), "b", PROMPTS[2]), range(10)))
    assert set(said) == {alone["b", PROMPTS[2]]}
    assert wire.get("/v1/models/b").json()["loads"]["count"] == before + 1


def test_a_stream_goes_on_when_its_engine_is_killed(server: ServerProcess, client: OpenAI, wire: httpx.Client) -> None:
    options: dict[str, Any] = {"model": "b", "prompt": PROMPTS[0], "max_tokens": 100, "temperature": 0}
    more = {"extra_body": {"ignore_eos": True}}
    whole = client.completions.create(**options, **more).choices[0].text
    pieces = []
    for number, chunk in enumerate(client.completions.create(**options, **more, stream=True)):
        pieces.append(chunk.choices[0].text)
        if number == 5:
            for engine in engines(server):
                os.kill(engine.pid, signal.SIGKILL)
    assert "".join(pieces) == whole and wire.get("/v1/models/b").json()["state"] == "ready"


def test_an_engine_that_is_killed_while_it_loads(
    server: ServerProcess, client: OpenAI, wire: httpx.Client, alone: dict[tuple[str, str], str]
) -> None:
    """The load goes on with another process, or the next request begins one."""
    wire.post("/v1/models/a/unload")
    wire.post("/v1/models/b/unload")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat, client, "a", PROMPTS[0])
        os.kill(wait_for(lambda: engines(server))[0].pid, signal.SIGKILL)
        try:
            assert first.result() == alone["a", PROMPTS[0]]
        except APIStatusError as error:
            assert error.status_code == 503
    wait_for(lambda: wire.post("/v1/models/a/load").status_code == 200)
    assert chat(client, "a", PROMPTS[0]) == alone["a", PROMPTS[0]] and len(engines(server)) == 1


def test_an_engine_that_is_killed_while_it_is_unloaded(
    server: ServerProcess, client: OpenAI, wire: httpx.Client, alone: dict[tuple[str, str], str]
) -> None:
    wire.post("/v1/models/a/load")
    pid = wait_for(lambda: engines(server))[0].pid
    with ThreadPoolExecutor(1) as pool:
        unloading = pool.submit(wire.post, "/v1/models/a/unload?force=true")
        os.kill(pid, signal.SIGKILL)
        assert unloading.result().json()["state"] == "unloaded"
    wait_for(lambda: not engines(server))
    assert chat(client, "a", PROMPTS[1]) == alone["a", PROMPTS[1]]


def test_forms_name_their_model_too(wire: httpx.Client) -> None:
    def send(**fields: str) -> httpx.Response:
        return wire.post("/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", b"RIFF", "audio/wav")})

    assert send(model="nobody").status_code == 404
    refused = send(model="b")
    assert refused.status_code == 400 and "b" in states(wire)


def test_all_are_counted_by_their_names(client: OpenAI, wire: httpx.Client) -> None:
    chat(client, "a", PROMPTS[0])
    text = wire.get("/metrics").text
    assert 'cadence:model_state{model_name="a",state="ready"} 1.0' in text
    assert 'cadence:model_state{model_name="broken",state="ready"} 0.0' in text
    assert 'vllm:num_requests_running{engine="0",model_name="a"}' in text
    assert text.count("# TYPE vllm:generation_tokens_total counter") == 1
    assert wire.get("/load").json() == {"server_load": 0} and wire.get("/health").status_code == 200


def test_kept_responses_outlive_their_model(client: OpenAI, wire: httpx.Client) -> None:
    made = client.responses.create(model="a", input=PROMPTS[0], max_output_tokens=16)
    chat(client, "b", PROMPTS[0])  # there is memory for one: `a` is gone
    assert client.responses.retrieve(made.id).output_text == made.output_text
    later = client.responses.create(model="b", input="go on", previous_response_id=made.id, max_output_tokens=16)
    assert later.model == "b" and later.output_text
    client.responses.delete(made.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(made.id)


def test_draining_ends_running_requests_in_order(models_file: str) -> None:
    """And tells those that wait for a model to come again."""
    with ServerProcess(f"--models={models_file}", "--models-memory", ONE_ENGINE, *FLAGS) as server:
        began, ended = threading.Event(), []

        def stream() -> None:
            body = {"model": "a", "prompt": PROMPTS[0], "max_tokens": 200, "ignore_eos": True, "stream": True}
            with server.client() as wire, wire.stream("POST", "/v1/completions", json=body) as answer:
                for line in answer.iter_lines():
                    began.set()
                    ended.append(line)

        thread = threading.Thread(target=stream)
        thread.start()
        assert began.wait(240)
        with ThreadPoolExecutor(1) as pool, server.client() as wire:
            body = {"model": "b", "prompt": PROMPTS[0]}
            waiting = pool.submit(wire.post, "/v1/completions", json=body)  # for the place of `a`
            wait_for(lambda: wire.get("/v1/models/b").json()["requests"]["waiting"] or waiting.done())
            server.signal(signal.SIGTERM)
            assert waiting.result().status_code in (200, 503)  # 200: the stream was over before
        thread.join(240)
        assert [line for line in ended if line][-1] == "data: [DONE]"
        assert server.wait() == 0


def test_one_that_sleeps_says_the_same_when_it_wakes(
    tiny_model: Callable[[str], Path], tmp_path: Path, alone: dict[tuple[str, str], str]
) -> None:
    models = [{"name": name, "model": str(tiny_model(family)), "idle": "sleep"} for name, family in FAMILIES.items()]
    models[0]["keep_alive"] = 0
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": models}))
    with ServerProcess(f"--models={file}", *FLAGS, "--models-memory", "1600M") as server, server.client() as wire:
        client = openai(server)
        for number in range(2):
            assert chat(client, "a", PROMPTS[number]) == alone["a", PROMPTS[number]]
            wait_for(lambda: states(wire)["a"] == "sleeping")
        card = wire.get("/v1/models/a").json()
        assert card["loads"]["count"] == 1 and 0 < card["memory"]["held"] < card["memory"]["needed"]
        os.kill(engines(server)[0].pid, signal.SIGKILL)  # while it sleeps
        assert chat(client, "b", PROMPTS[2]) == alone["b", PROMPTS[2]]
        assert chat(client, "a", PROMPTS[2]) == alone["a", PROMPTS[2]]
