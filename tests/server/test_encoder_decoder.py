"""/v1/completions of a model with an encoder: the prompt is what that reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cadence import LLM, SamplingParams
from tests.helpers.tiny_seq2seq import make_seq2seq
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

FLAGS = ("--dtype", "float32", "--num-gpu-blocks-override", "300", "--served-model-name", "tiny")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seq2seq("bart", tmp_path_factory.mktemp("seq2seq"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    with ServerProcess(directory, *FLAGS) as running:
        yield running


def complete(server: ServerProcess, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def test_the_encoder_reads_the_prompt(server: ServerProcess, directory: Path) -> None:
    llm = LLM(model=str(directory), dtype="float32", num_gpu_blocks_override=300)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts: list[Any] = ["a dog ran", [5, 6, 7, 8, 1]]
    for prompt, output in zip(prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
        answer = complete(server, prompt=prompt).json()
        assert answer["choices"][0]["text"] == output.outputs[0].text
        read = output.encoder_prompt_token_ids
        assert read is not None and answer["usage"]["prompt_tokens"] == len(read) + 1
        assert answer["usage"]["completion_tokens"] == 8


def test_a_prompt_may_be_cut_to_what_the_encoder_reads(server: ServerProcess) -> None:
    long = [5 + number % 90 for number in range(140)]
    cut = complete(server, prompt=long, truncate_prompt_tokens=-1, truncation_side="right").json()
    assert cut["choices"][0]["text"] == complete(server, prompt=long[:128]).json()["choices"][0]["text"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt": [5] * 129}, "the prompt has 129 tokens; this model's encoder reads at most 128"),
        ({"prompt": [5, 6], "echo": True}, "echo cannot be used: this model's encoder reads the prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix cannot be used"),
        ({"prompt": [5, 6], "max_tokens": 128}, "128"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(server: ServerProcess, fields: dict[str, Any], says: str) -> None:
    answer = complete(server, **fields)
    assert answer.status_code == 400 and says in answer.json()["error"]["message"]
