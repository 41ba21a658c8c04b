"""Bad input gets one clear error naming the field or file; the engine goes on serving."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, SamplingParams
from cadence.core.errors import (
    CadenceError,
    ConfigError,
    InvalidRequestError,
    ModelNotFoundError,
    TemplateError,
    TokenizerError,
    WeightsError,
)
from cadence.text.template_limits import TemplateLimits

pytestmark = pytest.mark.engine

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 100}
GOOD = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> LLM:
    return LLM(str(tiny_model("llama")), **OPTIONS)


@pytest.fixture(autouse=True)
def still_serving(request: pytest.FixtureRequest) -> Any:
    """After every bad request the same engine answers a good one."""
    yield
    if "llm" in request.fixturenames:
        engine: LLM = request.getfixturevalue("llm")
        assert len(engine.generate([5, 6, 7], GOOD, use_tqdm=False)[0].outputs[0].token_ids) == 4
        assert not engine.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", ["prompt", "empty"]),
        ({"prompt_token_ids": []}, ["prompt", "empty"]),
        ({"prompt_token_ids": list(range(3, 131))}, ["maximum context length is 128", "requested 129"]),
        ({"prompt_token_ids": [1, 10**6]}, ["position 1 of the prompt", "1000000"]),
        ({"prompt_token_ids": [1, -1]}, ["position 1 of the prompt", "-1"]),
        ({"prompt_token_ids": [1.5]}, ["prompt", "integers"]),
        ({"prompt": "x", "colour": 1}, ["colour"]),
        ({"prompt": "x", "multi_modal_data": {"image": 1}}, ["multi_modal_data"]),
        ({}, ["prompt"]),
        (17, ["prompts"]),
        ([None], ["prompt"]),
    ],
)
def test_prompts(llm: LLM, prompt: Any, words: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompt, GOOD, use_tqdm=False)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"logprobs": -2}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"logit_bias": {10**6: 1.0}}, "logit_bias"),
        ({"logit_bias": {5: float("nan")}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-4]}, "allowed_token_ids"),
        ({"stop": [""]}, "stop"),
        ({"tempature": 1.0}, "temperature"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_sampling_params(llm: LLM, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        llm.generate("hello", SamplingParams(**options), use_tqdm=False)


def test_one_bad_prompt_cancels_its_batch_only(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate(["good", "", "also good"], GOOD, use_tqdm=False)


def test_adapters_are_refused_by_name(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="LoRA"):
        llm.generate("hello", GOOD, lora_request=object(), use_tqdm=False)


def test_lengths_of_lists_must_agree(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="sampling_params"):
        llm.generate(["a", "b"], [GOOD], use_tqdm=False)


def test_a_template_that_loops(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(llm.get_tokenizer()._templates, "_limits", TemplateLimits(max_ticks=100_000))
    with pytest.raises(TemplateError, match="more than 100000 loop iterations"):
        llm.chat([{"role": "user", "content": "hi"}], GOOD, chat_template=endless, use_tqdm=False)


@pytest.mark.parametrize(
    "messages", [[{"content": "no role"}], [{"role": "user", "content": 5}], [], [{"role": 3, "content": "x"}]]
)
def test_messages(llm: LLM, messages: list[Any]) -> None:
    with pytest.raises(InvalidRequestError, match="messages"):
        llm.chat(messages, GOOD, chat_template="{{ messages }}", use_tqdm=False)


def test_unknown_option_names_the_nearest(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(tiny_model("llama")), max_modle_len=64)


def test_max_model_len_beyond_the_model(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(tiny_model("llama")), max_model_len=10**6)


def test_a_pool_too_small_for_one_request(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(tiny_model("llama")), **{**OPTIONS, "num_gpu_blocks_override": 3})


def test_no_such_model(tmp_path: Path) -> None:
    with pytest.raises((ModelNotFoundError, CadenceError)):
        LLM(str(tmp_path / "nothing-here"))


@pytest.fixture
def copy_of(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "copy"))


def weights_file(directory: Path) -> Path:
    return next(directory.glob("*.safetensors"))


def test_missing_weights(copy_of: Path) -> None:
    weights_file(copy_of).unlink()
    with pytest.raises((WeightsError, ModelNotFoundError), match="safetensors"):
        LLM(str(copy_of), **OPTIONS)


def test_truncated_weights(copy_of: Path) -> None:
    path = weights_file(copy_of)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(WeightsError, match=path.name):
        LLM(str(copy_of), **OPTIONS)


def test_corrupt_weights(copy_of: Path) -> None:
    path = weights_file(copy_of)
    path.write_bytes(b"\xff" * 4096)
    with pytest.raises(WeightsError, match=path.name):
        LLM(str(copy_of), **OPTIONS)


def test_wrong_tokenizer(copy_of: Path) -> None:
    path = copy_of / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"] |= {f"not in the model {number}": 10_000 + number for number in range(5_000)}
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="vocabulary"):
        LLM(str(copy_of), **OPTIONS)


def test_corrupt_tokenizer(copy_of: Path) -> None:
    (copy_of / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        LLM(str(copy_of), **OPTIONS)


def test_corrupt_config(copy_of: Path) -> None:
    (copy_of / "config.json").write_text("{")
    with pytest.raises(CadenceError, match=r"config\.json"):
        LLM(str(copy_of), **OPTIONS)


def test_unknown_architecture(copy_of: Path) -> None:
    path = copy_of / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": ["LlamaForCausalML"]}))
    with pytest.raises(ConfigError, match="LlamaForCausalLM"):
        LLM(str(copy_of), **OPTIONS)
