"""`prompt_embeds` over HTTP: vectors in the place of a prompt's tokens, where the server takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from safetensors import safe_open

from tests.media.bad_vectors import base64_of, broken_files, good_files, numpy_file, strange_files, torch_file
from tests.server.fakes_chat import openai_client
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

IDS = [[5, 6, 7, 8, 9], list(range(20, 60)), [77]]
LENGTH = 128  # of the model's context


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def vectors(directory: Path) -> list[torch.Tensor]:
    """What the model's embedding gives for `IDS`: [n, H] each."""
    (file,) = directory.glob("*.safetensors")
    with safe_open(file, "pt") as weights:
        table = weights.get_tensor("model.embed_tokens.weight")
    return [table[torch.tensor(each)] for each in IDS]


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    sizes = ("--max-model-len", str(LENGTH), "--num-gpu-blocks-override", "500")
    with ServerProcess(directory, *sizes, "--served-model-name", "tiny", "--enable-prompt-embeds") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai_client(server)


def complete(client: openai.OpenAI, prompt: Any = "", embeds: Any = None, **fields: Any) -> Any:
    extra = {"ignore_eos": True, "return_token_ids": True}
    if embeds is not None:
        extra["prompt_embeds"] = embeds
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
    return client.completions.create(**asked, extra_body=extra)


def tokens(answer: Any) -> list[list[int]]:
    return [choice.token_ids for choice in answer.choices]


def test_vectors_are_what_tokens_would_be(client: openai.OpenAI, vectors: list[torch.Tensor]) -> None:
    """In every format; `prompt` is empty, as clients say that have to send one."""
    expected = complete(client, IDS[0], logprobs=2)
    for name, data in good_files(vectors[0]).items():
        found = complete(client, embeds=base64_of(data), logprobs=2)
        assert tokens(found) == tokens(expected), name
        assert found.choices[0].logprobs.token_logprobs == expected.choices[0].logprobs.token_logprobs
    assert found.usage.prompt_tokens == len(IDS[0])


def test_several_and_texts_after_them(client: openai.OpenAI, vectors: list[torch.Tensor]) -> None:
    files = [base64_of(torch_file(each)) for each in vectors]
    alone = [tokens(complete(client, each))[0] for each in (*IDS, "the quick", "brown fox")]
    assert len(set(map(tuple, alone))) == 5
    assert tokens(complete(client, embeds=files)) == alone[:3]
    assert tokens(complete(client, ["the quick", "brown fox"], embeds=files)) == alone
    assert tokens(complete(client, "the quick", embeds=files[2])) == [alone[2], alone[3]]
    assert tokens(complete(client, IDS[1], embeds=files[:1])) == alone[:2]
    sampled: dict[str, Any] = {"n": 2, "temperature": 0.8, "seed": 3}
    again = [tokens(complete(client, embeds=files[:2], **sampled)) for _ in range(2)]
    assert again[0] == again[1] and len(set(map(tuple, again[0]))) == 4


def test_streams_and_searches(client: openai.OpenAI, vectors: list[torch.Tensor]) -> None:
    whole = complete(client, IDS[1]).choices[0].text
    file = base64_of(numpy_file(vectors[1]))
    assert "".join(chunk.choices[0].text for chunk in complete(client, embeds=file, stream=True)) == whole
    beams = {"model": "tiny", "max_tokens": 6, "n": 3, "ignore_eos": True, "use_beam_search": True}
    asked = ({"prompt": IDS[1]}, {"prompt_embeds": file})
    found = [post(client, **beams, **each).json()["choices"] for each in asked]
    assert [each["text"] for each in found[0]] == [each["text"] for each in found[1]] and len(found[0]) == 3


def post(client: openai.OpenAI, path: str = "completions", **body: Any) -> httpx.Response:
    return httpx.post(f"{client.base_url}{path}", json={"model": "tiny", **body}, timeout=240)


def test_what_is_wrong_is_said(client: openai.OpenAI, vectors: list[torch.Tensor]) -> None:
    good = base64_of(numpy_file(vectors[0]))
    infinite = base64_of(torch_file(torch.full((2, 64), 1e300, dtype=torch.float64)))
    longest = base64_of(numpy_file(torch.zeros(LENGTH - 3, 64).half()))
    refused: list[tuple[dict[str, Any], str, str]] = [
        ({"prompt_embeds": "AAA"}, "prompt_embeds", "not base64"),
        ({"prompt_embeds": base64_of(b"words")}, "prompt_embeds", "one matrix of floats"),
        ({"prompt_embeds": [good, "AAAA"]}, "prompt_embeds[1]", "one matrix of floats"),
        ({"prompt_embeds": base64_of(numpy_file(torch.zeros(2, 7)))}, "prompt_embeds", "the model's have 64"),
        ({"prompt_embeds": base64_of(numpy_file(torch.full((2, 64), torch.nan)))}, "prompt_embeds", "not finite"),
        (
            {"prompt_embeds": infinite},
            "prompt_embeds",
            "not finite",
        ),
        ({"prompt_embeds": longest, "max_tokens": 8}, "prompt", f"{LENGTH} tokens"),
        ({"prompt_embeds": 7}, "prompt_embeds", "valid string"),
        ({"prompt_embeds": [7]}, "prompt_embeds", "valid string"),
        ({"prompt_embeds": [good] * 1025}, "prompt_embeds", "1024"),
        ({"prompt_embeds": [good] * 600, "prompt": ["a"] * 600}, "n", "1024"),
        ({"prompt_embeds": good, "echo": True}, "echo", "vectors are no tokens"),
        ({"prompt_embeds": good, "suffix": "end"}, "suffix", "vectors are no tokens"),
        ({"prompt_embeds": good, "prompt_logprobs": 1}, "prompt_logprobs", "vectors are no tokens"),
        ({"prompt_embeds": good, "truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "vectors are no tokens"),
        ({"prompt_embeds": []}, "prompt", "must be a string"),
        ({}, "prompt", "must be a string"),
    ]
    for body, field, words in refused:
        answer = post(client, **body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == field and words in error["message"], (body, error)
    assert "no token ids" in post(client, "completions/render", prompt_embeds=good).json()["error"]["message"]
    assert "prompt_embeds" in post(client, "chat/completions", messages=[], prompt_embeds=good).json()["error"]["param"]


def test_bad_files_disturb_nobody(server: ServerProcess, client: openai.OpenAI, vectors: list[torch.Tensor]) -> None:
    """Each is refused, or is a matrix of another size than the model's."""
    files = [*strange_files(), *broken_files(seed=2, count=150)]
    expected = tokens(complete(client, IDS[1]))
    good = base64_of(torch_file(vectors[1]))
    with ThreadPoolExecutor(8) as pool:
        bad = {name: pool.submit(post, client, prompt_embeds=base64_of(data)) for name, data in files}
        served = [pool.submit(complete, client, embeds=good) for _ in range(8)]
        assert all(tokens(answer.result()) == expected for answer in served)
    for name, answer in bad.items():
        error = answer.result().json()["error"]
        assert answer.result().status_code == 400 and error["param"] == "prompt_embeds", (name, error)
    with server.client() as plain:
        assert plain.get("/livez").status_code == plain.get("/health").status_code == 200
    assert "Traceback" not in server.output()


def test_it_is_off_unless_asked_for(tiny_server: ServerProcess) -> None:
    """Then nothing of it is read."""
    for given in ("AAAA", "%", [base64_of(b"words")]):
        answer = post(openai_client(tiny_server), prompt="", prompt_embeds=given)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == "prompt_embeds"
        assert "--enable-prompt-embeds" in error["message"]
