"""Pictures in the chats of a real server with a tiny LLaVA: the same answers however they are sent, bad ones beside
good ones."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from PIL import Image

from cadence import LLM, SamplingParams
from tests.helpers.processes import family_of, resident_bytes
from tests.helpers.tiny_vision import make_vision
from tests.media import bad_media
from tests.media.bad_media import MOST_PIXELS
from tests.media.pictures import data_url, picture, pixels
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 400}
FLAGS = [word for name, value in OPTIONS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
SHORT: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 8}
TEXT = {"type": "text", "text": "what is the quick"}
MB = 2**20
LIVE_S = 0.25  # of /livez, on a machine of its own


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision("llava", tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for name, data in (("a.png", picture()), ("b.bmp", picture("BMP", seed=2))):
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def server(directory: Path, folder: Path) -> Iterator[ServerProcess]:
    limits = ("--max-image-pixels", str(MOST_PIXELS), "--limit-mm-per-prompt", '{"image": 5}')
    with ServerProcess(
        directory, *FLAGS, *limits, "--served-model-name", "tiny", "--allowed-local-media-path", str(folder)
    ) as running:
        yield running


@pytest.fixture(scope="module")
def said(directory: Path) -> dict[str, str]:
    """What the model says of pictures, asked in Python."""
    llm = LLM(str(directory), **OPTIONS)
    conversations = {
        "one": [{"type": "image_pil", "image_pil": Image.fromarray(pixels())}, TEXT],
        "other": [{"type": "image", "image": pixels(seed=2)}, TEXT],
        "both": [{"type": "image", "image": picture()}, TEXT, {"type": "image", "image": picture("BMP", seed=2)}],
        "none": [TEXT],
    }
    params = SamplingParams(temperature=0, max_tokens=8)
    messages = [[{"role": "user", "content": content}] for content in conversations.values()]
    outputs = llm.chat(messages, params, use_tqdm=False)
    found = {name: output.outputs[0].text for name, output in zip(conversations, outputs, strict=True)}
    assert len(set(found.values())) == 4
    return found


def url_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def ask(server: ServerProcess, *content: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {**SHORT, "messages": [{"role": "user", "content": list(content)}], **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=240)


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    said: str = answer.json()["choices"][0]["message"]["content"]
    return said


def test_urls_of_every_kind_show_the_same(server: ServerProcess, said: dict[str, str], folder: Path) -> None:
    one, other = data_url(picture()), data_url(picture("BMP", seed=2), "image/bmp")
    for part in (
        url_part(one), {"type": "image_url", "image_url": one}, {"type": "input_image", "image_url": one},
        url_part(f"file://{folder}/a.png"), url_part(data_url(picture("TIFF"))), {"image_url": one},
    ):  # fmt: skip
        assert text(ask(server, part, TEXT)) == said["one"]
    assert text(ask(server, url_part(f"file://{folder}/b.bmp"), TEXT)) == text(ask(server, url_part(other), TEXT))
    assert text(ask(server, url_part(other), TEXT)) == said["other"]
    assert text(ask(server, url_part(one), TEXT, url_part(other))) == said["both"]
    assert text(ask(server, TEXT)) == said["none"]


def test_the_tokens_of_pictures_are_counted_and_their_prefix_is_found(server: ServerProcess) -> None:
    fresh = data_url(picture(seed=77))
    first, again = (ask(server, url_part(fresh), TEXT).json()["usage"] for _ in range(2))
    none = ask(server, TEXT).json()["usage"]
    assert (
        first["prompt_tokens"] == again["prompt_tokens"] == none["prompt_tokens"] + 16 + 1
    )  # 16 patches, a line break
    streamed = ask(server, url_part(fresh), TEXT, stream=True, stream_options={"include_usage": True}).text
    assert f'"prompt_tokens":{first["prompt_tokens"]},' in streamed.rpartition('"usage"')[2]


def test_clients(server: ServerProcess, said: dict[str, str]) -> None:
    encoded = base64.b64encode(picture()).decode()
    chat = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x")
    parts: Any = [url_part(data_url(picture())), TEXT]
    answer = chat.chat.completions.create(**SHORT, messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == said["one"]
    items: Any = [
        {"type": "input_image", "image_url": data_url(picture()), "detail": "auto"},
        {"type": "input_text", "text": TEXT["text"]},
    ]
    response = chat.responses.create(
        model="tiny", temperature=0, max_output_tokens=8, input=[{"role": "user", "content": items}]
    )
    assert response.output_text == said["one"]
    more = chat.responses.create(
        model="tiny", temperature=0, max_output_tokens=8, input="and?", previous_response_id=response.id
    )
    assert more.usage is not None and response.usage is not None
    assert more.usage.input_tokens > response.usage.input_tokens  # the picture is part of it, still
    messages = anthropic.Anthropic(base_url=server.url, api_key="x")
    block: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
    asked: Any = [{"role": "user", "content": [block, TEXT]}]
    greedy = {"temperature": 0}
    message = messages.messages.create(model="tiny", max_tokens=8, messages=asked, extra_body=greedy)
    assert message.content[0].type == "text" and message.content[0].text == said["one"]
    counted = messages.messages.count_tokens(model="tiny", messages=asked)
    assert answer.usage is not None and counted.input_tokens == answer.usage.prompt_tokens


def test_tools_show_pictures(server: ServerProcess) -> None:
    """In all three protocols the model reads the same."""
    url, call = data_url(picture()), {"name": "look", "arguments": "{}"}
    tool: dict[str, Any] = {"name": "look", "parameters": {"type": "object"}}
    chat = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={
            **SHORT, "tools": [{"type": "function", "function": tool}], "tool_choice": "none",
            "messages": [
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": call}]},
                {"role": "tool", "tool_call_id": "a", "content": [url_part(url), TEXT]},
            ],
        },
        timeout=240,
    )  # fmt: skip
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}, TEXT]}
    anthropic_answer = httpx.post(
        f"{server.url}/v1/messages",
        json={
            **SHORT, "tools": [{"name": "look", "input_schema": {"type": "object"}}], "tool_choice": {"type": "none"},
            "messages": [
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
                {"role": "user", "content": [result]},
            ],
        },
        timeout=240,
    )  # fmt: skip
    output = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": TEXT["text"]}]
    responses = httpx.post(
        f"{server.url}/v1/responses",
        json={
            "model": "tiny", "temperature": 0, "max_output_tokens": 8, "tools": [{"type": "function", **tool}],
            "tool_choice": "none",
            "input": [
                {"role": "user", "content": "look"},
                {"type": "function_call", "call_id": "a", **call},
                {"type": "function_call_output", "call_id": "a", "output": output},
            ],
        },
        timeout=240,
    )  # fmt: skip
    first, second, third = text(chat), anthropic_answer.json(), responses.json()
    assert second["content"][0]["text"] == first == third["output"][0]["content"][0]["text"]
    assert chat.json()["usage"]["prompt_tokens"] > 40


def test_a_picture_is_shown_again_by_its_name(server: ServerProcess, said: dict[str, str]) -> None:
    shown = ((picture(), "1"), (picture("BMP", seed=2), "2"))
    one, other = ({**url_part(data_url(data)), "uuid": name} for data, name in shown)
    assert text(ask(server, one, TEXT)) == said["one"]
    again: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": None, "uuid": "1"},
        {"type": "image_url", "uuid": "1"},
        {"type": "image_url", "image_url": {"url": None, "uuid": "1"}},
        {"type": "input_image", "uuid": "1"},
    ]
    for part in again:
        assert text(ask(server, part, TEXT)) == said["one"]
        assert text(ask(server, part, TEXT, other)) == said["both"]
    unknown = ask(server, TEXT, {"type": "image_url", "image_url": None, "uuid": "3"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "messages[0].content[1]")
    assert "none is known here as '3'" in unknown.text
    salted = ask(server, {"type": "image_url", "uuid": "1"}, TEXT, cache_salt="mine")
    assert salted.status_code == 400 and "none is known here as '1'" in salted.text


def test_a_request_says_how_its_pictures_are_prepared(server: ServerProcess, said: dict[str, str]) -> None:
    one = url_part(data_url(picture()))
    assert text(ask(server, one, TEXT, mm_processor_kwargs={"image_mean": [0.9, 0.1, 0.5]})) != said["one"]
    assert text(ask(server, one, TEXT, mm_processor_kwargs={})) == said["one"]
    for kwargs, words in (({"colour": 1}, "colour is not known"), ({"resample": 77}, "mm_processor_kwargs"), ([1], "")):
        answer = ask(server, one, TEXT, mm_processor_kwargs=kwargs)
        assert answer.status_code == 400 and words in answer.text
        assert answer.json()["error"]["param"].startswith("mm_processor_kwargs")


@pytest.mark.parametrize(
    ("content", "param", "word"),
    [
        ([url_part("file:///etc/passwd")], "messages[0].content[0].image_url.url", "no such file below"),
        ([TEXT, url_part("http://127.0.0.1/a.png")], "messages[0].content[1].image_url.url", "--allowed-media-domains"),
        ([{"type": "video_url", "video_url": "data:,"}], "messages[0].content[0].type", "only text and image"),
        ([{"type": "input_audio", "input_audio": {}}], "messages[0].content[0].type", "only text and image"),
        ([url_part(data_url(b"no"))], "messages[0].content[0].image_url.url", "format"),
        ([url_part(data_url(picture()))] * 6, "messages[0].content[5].image_url.url", "at most 5 pictures"),
        ([url_part(data_url(picture())), {"type": "text", "text": "<image>"}], "messages", "2 of '<image>'"),
        ([url_part(data_url(picture())), url_part("a")], "messages[0].content[1].image_url.url", "URL"),
    ],
)
def test_what_is_wrong_is_named(server: ServerProcess, content: list[Any], param: str, word: str) -> None:
    answer = ask(server, *content)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert word in answer.json()["error"]["message"]


def test_a_limit_of_ones_own_must_fit_after_the_picture(server: ServerProcess) -> None:
    most = httpx.get(f"{server.url}/v1/models").json()["data"][0]["max_model_len"]
    used = ask(server, url_part(data_url(picture())), TEXT).json()["usage"]["prompt_tokens"]
    answer = ask(server, url_part(data_url(picture())), TEXT, max_tokens=most - used + 1)
    assert answer.status_code == 400 and f"({used} in the messages, {most - used + 1} in the completion)" in answer.text
    assert ask(server, url_part(data_url(picture())), TEXT, max_tokens=most - used, stop=[" "]).status_code == 200


def test_a_model_of_text_refuses_pictures(tiny_server: ServerProcess) -> None:
    answer = ask(tiny_server, url_part(data_url(picture())), TEXT)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0].type")
    assert "only text parts are supported by this model" in answer.text


@pytest.mark.wide
def test_bad_media_disturb_nobody(server: ServerProcess, said: dict[str, str]) -> None:
    """The whole campaign at once, while others are served; prints how long /livez took and what memory grew by."""
    urls = {name: data_url(data) for name, data, _ in bad_media.bad_files() if name != "too many bytes"}
    urls |= {bad.name: bad.url for bad in bad_media.bad_urls() if bad.kind == "image" and "too large" not in bad.name}
    assert len(urls) > 200
    good = data_url(picture())
    family = family_of(server.process.pid)
    before = resident_bytes(family)
    most, slowest, is_over = 0, 0.0, threading.Event()

    def watch() -> None:
        nonlocal most, slowest
        with server.client() as client:
            while not is_over.wait(0.02):
                begins = time.monotonic()
                assert client.get("/livez").status_code == 200
                slowest = max(slowest, time.monotonic() - begins)
                most = max(most, resident_bytes(family))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        refused = {name: pool.submit(ask, server, TEXT, url_part(url)) for name, url in urls.items()}
        served = [pool.submit(ask, server, url_part(good), TEXT) for _ in range(8)]
        bad = {name: answer.result() for name, answer in refused.items()}
        assert all(text(answer.result()) == said["one"] for answer in served)
    is_over.set()
    watcher.join()
    for name, answer in bad.items():
        assert answer.status_code == 400, f"{name}: {answer.text}"
        assert answer.json()["error"]["param"] == "messages[0].content[1].image_url.url", f"{name}: {answer.text}"
    grown = f"memory grew by {(most - before) / MB:.0f} MiB"
    print(f"{len(bad)} bad media; /livez took at most {slowest * 1000:.0f} ms; {grown}")
    assert slowest < 4 * LIVE_S and most - before < 256 * MB
