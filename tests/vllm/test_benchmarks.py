"""vLLM's names of benchmarks: prompts are drawn and read, a request is timed, and the commands run from a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cadence.vllm.benchmarks import latency, serve, throughput
from cadence.vllm.benchmarks.datasets import (
    CustomDataset,
    PrefixRepetitionRandomDataset,
    RandomDataset,
    SampleRequest,
    ShareGPTDataset,
    SonnetDataset,
    add_dataset_parser,
    get_samples,
)
from cadence.vllm.benchmarks.lib.endpoint_request_func import (
    ASYNC_REQUEST_FUNCS,
    OPENAI_COMPATIBLE_BACKENDS,
    RequestFuncInput,
    RequestFuncOutput,
)
from cadence.vllm.utils.argparse_utils import FlexibleArgumentParser

from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.entrypoints.cli import bench
from cadence.text.load import load_tokenizer
from cadence.text.tokenizer import Tokenizer
from cadence.vllm.missing import MissingFeatureError
from tests.cli.scripted_server import ScriptedServer, running
from tests.helpers.tiny_tokenizers import byte_level, save


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    return load_tokenizer(save(byte_level(), tmp_path_factory.mktemp("tokenizer"), chat_template=template))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with running(ScriptedServer()) as started:
        yield started


def test_random_prompts_have_the_lengths_that_were_asked_for(tokenizer: Tokenizer) -> None:
    shape: dict[str, Any] = {"prefix_len": 4, "input_len": 20, "output_len": 7}
    found = RandomDataset(random_seed=3).sample(tokenizer, 5, "r-", **shape)
    assert [one.request_id for one in found] == [f"r-{number}" for number in range(5)]
    assert {one.expected_output_len for one in found} == {7}
    assert all(one.prompt_len == len(tokenizer.encode(str(one.prompt))) for one in found)
    assert all(12 <= one.prompt_len <= 48 for one in found), "about 24 tokens"
    assert len({one.prompt for one in found}) == 5
    assert found == RandomDataset(random_seed=3).sample(tokenizer, 5, "r-", **shape)
    assert found != RandomDataset(random_seed=4).sample(tokenizer, 5, "r-", **shape)
    spread = RandomDataset().sample(tokenizer, 20, input_len=20, range_ratio=0.5, output_len=40)
    assert len({one.expected_output_len for one in spread}) > 5
    with pytest.raises(InvalidRequestError, match="no option 'inputlen'"):
        RandomDataset().sample(tokenizer, 1, inputlen=3)


def test_prompts_that_begin_alike(tokenizer: Tokenizer) -> None:
    shape: dict[str, Any] = {"prefix_len": 20, "suffix_len": 5, "num_prefixes": 2, "output_len": 7}
    dataset = PrefixRepetitionRandomDataset(random_seed=3)
    found = dataset.sample(tokenizer, 6, **shape)
    assert len({one.prompt for one in found}) == 6 and {one.expected_output_len for one in found} == {7}
    assert len({str(one.prompt)[:10] for one in found}) == 2
    assert found == dataset.sample(tokenizer, 6, **shape)
    parser = FlexibleArgumentParser()
    add_dataset_parser(parser)
    words = [f"--prefix-repetition-{name.replace('_', '-')}={number}" for name, number in shape.items()]
    words += ["--dataset-name", "prefix_repetition", "--num-prompts", "6", "--seed", "3"]
    assert get_samples(parser.parse_args(words), tokenizer) == found


def test_conversations_of_a_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "share.json"
    turns = [[{"value": f"question {number}"}, {"value": "an answer"}] for number in range(3)]
    file.write_text(json.dumps([{"conversations": turn} for turn in turns]))
    found = ShareGPTDataset(dataset_path=str(file), disable_shuffle=True).sample(tokenizer, 5)
    assert [one.prompt for one in found] == [f"question {number % 3}" for number in range(5)]
    assert found[0].expected_output_len == len(tokenizer.encode("an answer", add_special_tokens=False))
    assert [one.request_id for one in found] == list("01234")
    assert len(ShareGPTDataset(dataset_path=str(file)).sample(tokenizer, 5, no_oversample=True, output_len=9)) == 3
    with pytest.raises(InvalidRequestError, match="needs a dataset_path"):
        ShareGPTDataset().sample(tokenizer, 1)


def test_prompts_of_a_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one", "output_tokens": 3}\n{"prompt": "two"}\n')
    dataset = CustomDataset(dataset_path=str(file), disable_shuffle=True)
    found = dataset.sample(tokenizer, 2, skip_chat_template=True)
    assert [(one.prompt, one.expected_output_len) for one in found] == [("one", 3), ("two", 256)]
    assert [one.prompt for one in dataset.sample(tokenizer, 2)] == ["<one>", "<two>"]
    assert {one.expected_output_len for one in dataset.sample(tokenizer, 2, output_len=5)} == {5}


def ask(name: str, url: str, **given: Any) -> RequestFuncOutput:
    words = {"prompt": "hello", "prompt_len": 1, "output_len": 4, "model": "m", **given}
    return asyncio.run(ASYNC_REQUEST_FUNCS[name](RequestFuncInput(api_url=url, **words), None))


@pytest.mark.parametrize(("name", "path"), [("vllm", "/v1/completions"), ("openai-chat", "/v1/chat/completions")])
def test_a_request_is_timed(server: ScriptedServer, name: str, path: str) -> None:
    output = ask(name, server.url + path, ignore_eos=True, extra_body={"top_k": 3}, request_id="mine")
    assert output.success and not output.error
    assert output.generated_text == "a b ca" and output.output_tokens == 4 and len(output.itl) == 3
    assert 0 < output.ttft <= output.latency and output.start_time > 0
    (body,) = server.bodies
    assert (body["model"], body["top_k"], body["ignore_eos"]) == ("m", 3, True)
    assert body.get("prompt") == "hello" or body["messages"] == [{"role": "user", "content": "hello"}]
    assert "x-request-id: mine" in server.heads[0]


def test_a_request_that_fails_says_why(server: ScriptedServer) -> None:
    server.refuse[0] = (503, {"error": {"message": "not now", "code": 503}})
    output = ask("openai", f"{server.url}/v1/completions")
    assert not output.success and "not now" in output.error
    with pytest.raises(InvalidRequestError, match="api_url must end with /chat/completions"):
        ask("openai-chat", f"{server.url}/v1/completions")
    with pytest.raises(MissingFeatureError, match="text only"):
        ask("openai-chat", f"{server.url}/v1/chat/completions", multi_modal_content={"type": "image_url"})
    assert {"openai", "openai-chat", "vllm"} <= set(OPENAI_COMPATIBLE_BACKENDS)


def test_the_serving_benchmark_runs_from_a_script(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    args = parser.parse_args(["--base_url", server.url, "--num-prompts", "3", "--random-input-len", "5"])
    assert serve.main(args)["completed"] == 3
    assert "3 requests completed" in capsys.readouterr().out
    assert asyncio.run(serve.main_async(args))["completed"] == 3


@pytest.mark.parametrize("module", [latency, throughput])
def test_the_offline_benchmarks_run_from_a_script(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[dict[str, Any]] = []

    class LoadedError(Exception):
        """Far enough: what follows is the command's own."""

    def load_model(flags: Any) -> None:
        loaded.append(vars(flags))
        raise LoadedError

    monkeypatch.setattr(bench, "_load", load_model)
    parser = FlexibleArgumentParser()
    module.add_cli_args(parser)
    with pytest.raises(LoadedError):
        module.main(parser.parse_args(["--model", "m", "--input-len", "7", "--max_model_len", "64"]))
    assert (loaded[0]["model"], loaded[0]["input_len"], loaded[0]["max_model_len"]) == ("m", 7, "64")


def test_what_is_not_there_says_what_is() -> None:
    with pytest.raises(MissingFeatureError, match="read ShareGPT files"):
        SonnetDataset(dataset_path="sonnet.txt")
    with pytest.raises(MissingFeatureError, match="add_cli_args"):
        serve.benchmark()
    assert SampleRequest("a", 1, None).lora_request is None


def test_a_script_draws_the_prompts_that_its_flags_name(tokenizer: Tokenizer, tmp_path: Path) -> None:
    parser = FlexibleArgumentParser()
    add_dataset_parser(parser)
    words = "--num-prompts 3 --random-input-len 20 --random_output_len 7 --seed 3"
    found = get_samples(parser.parse_args(words.split()), tokenizer)
    assert found == RandomDataset(random_seed=3).sample(tokenizer, 3, input_len=20, output_len=7)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n')
    words = f"--dataset-name custom --dataset-path {tmp_path / 'prompts.jsonl'} --num-prompts 2 --custom-output-len 9"
    found = get_samples(parser.parse_args(words.split()), tokenizer)
    assert [(one.prompt, one.expected_output_len) for one in found] == [("<hello>", 9)] * 2
    for wrong in ("--dataset-name sonnet", "--enable-multimodal-chat"):
        with pytest.raises(ConfigError, match=wrong.split()[0]):
            get_samples(parser.parse_args(wrong.split()), tokenizer)
