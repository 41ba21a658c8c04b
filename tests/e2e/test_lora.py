"""Requests with LoRA adapters: peft's tokens, and in any company and every engine the bits that each has alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.errors import AdapterError, InvalidRequestError
from cadence.core.lora_request import LoRARequest
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.engine.llm_engine import LLMEngine
from tests.e2e.test_speculation import DRAFTS, assert_same, opened
from tests.e2e.test_structured import PADDED, SOME, SOME_PADDED, WAYS
from tests.helpers import oracle
from tests.helpers.adapters import make_adapter
from tests.helpers.tiny_models import VOCAB
from tests.helpers.wide import mostly_wide_rows

pytestmark = pytest.mark.engine

ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
RANKS = (1, 3, 4, 8, 16, 33, 48, 64)
FEW_SLOTS = ("plain", "bursts of 4, two steps in flight", "prefixes cached", "tiny pool")
SLOTS = {"enable_lora": True, "max_loras": 8, "max_lora_rank": 64}
Asked = tuple[list[int], SamplingParams, LoRARequest | None]


def named(path: Path, number: int = 1) -> LoRARequest:
    return LoRARequest(path.name, number, str(path))


def prompt_of(index: int, length: int) -> list[int]:
    return [(7 * index + 3 * place) % (VOCAB - 5) + 5 for place in range(length)]


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", {"r": 8, "target_modules": ATTENTION + MLP, "use_rslora": True}),
        ("llama", {"r": 4, "target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}),
        ("gemma2", {"r": 16, "target_modules": ATTENTION, "use_dora": True}),
    ],
    ids=["llama-all matrices", "llama-saved modules", "gemma2-dora"],
)
def test_tokens_are_those_of_peft(
    tiny_model: Callable[[str], Path], tmp_path: Path, family: str, config: dict[str, Any]
) -> None:
    directory = tiny_model(family)
    adapted = make_adapter(directory, tmp_path / "one", lora_alpha=16, **config)
    prompts = [prompt_of(index, length) for index, length in enumerate((3, 12, 30))]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    options = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 160}
    with LLM(str(directory), enable_lora=True, max_loras=2, **options) as llm:
        plain = llm.generate(prompts, params, use_tqdm=False)
        outputs = llm.generate(prompts, params, lora_request=named(tmp_path / "one"), use_tqdm=False)
        again = llm.generate(prompts, params, use_tqdm=False)
    assert {output.lora_request.name for output in outputs} == {"one"} and plain[0].lora_request is None
    assert all(len(output.outputs[0].token_ids) == 12 for output in [*plain, *outputs])
    assert_greedy(adapted, outputs)
    with adapted.disable_adapter():
        assert_greedy(adapted, plain)
    assert [o.outputs[0].token_ids for o in plain] == [o.outputs[0].token_ids for o in again]


def test_weights_are_read_again_under_adapters(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Of a family with layer norms, whose biases adapters may change."""
    directory, one = tiny_model("gpt2"), tmp_path / "one"
    make_adapter(directory, one, r=8, lora_alpha=16, target_modules=["c_attn", "c_fc"], bias="all")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    options = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 40}
    with LLM(str(directory), enable_lora=True, max_loras=2, enable_sleep_mode=True, **options) as llm:
        said = []
        for _ in range(2):
            for request in (None, named(one)):
                (output,) = llm.generate([prompt_of(1, 12)], params, lora_request=request, use_tqdm=False)
                said.append((list(output.outputs[0].token_ids), output.outputs[0].logprobs))
            llm.sleep(2)
            llm.wake_up()
    assert said[:2] == said[2:] and said[0] != said[1]


def assert_greedy(model: Any, outputs: Sequence[RequestOutput]) -> None:
    """By PEFT and transformers."""
    for output in outputs:
        tokens = list(output.outputs[0].token_ids)
        assert tokens == oracle.likeliest(model, list(output.prompt_token_ids or ()), tokens)


@pytest.fixture(scope="module")
def adapters(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight, of ranks 1 to 64: some of the attention alone, one with everything there is, of 16 bits and of 32."""
    root, made = tmp_path_factory.mktemp("adapters"), []
    for index, rank in enumerate(RANKS):
        config: dict[str, Any] = {"r": rank, "lora_alpha": 2 * rank**0.5, "target_modules": ATTENTION}
        if index % 3 == 0:
            config |= {"target_modules": ATTENTION + MLP}
        if index == 5:
            config |= {"use_dora": True, "modules_to_save": ["embed_tokens", "lm_head"]}
        if index == 6:
            config |= {"target_modules": [*ATTENTION, *MLP, "embed_tokens", "lm_head"]}
        dtype = torch.bfloat16 if index % 2 else torch.float32
        make_adapter(tiny_model("llama"), root / str(index), seed=index, dtype=dtype, **config)
        made.append(root / str(index))
    return made


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2, "ignore_eos": True},
    {"temperature": 1.0, "repetition_penalty": 1.2, "logprobs": 1},
    {"temperature": 0, "prompt_logprobs": 1, "logprobs": 1, "ignore_eos": True},
    {"temperature": 0.9, "n": 2, "ignore_eos": True},
]


def work(adapters: Sequence[Path]) -> list[Asked]:
    """Two requests of each adapter, with one prompt for all, and some without an adapter between them."""
    made: list[Asked] = []
    for index, path in enumerate([*adapters, *adapters]):
        common = {"seed": index, "max_tokens": 14, "output_kind": RequestOutputKind.FINAL_ONLY}
        params = SamplingParams(**common, **OPTIONS[index % len(OPTIONS)])
        prompt = prompt_of(0, 3 + 5 * (index % len(adapters)))
        made.append((prompt, params, named(path, index + 1)))
        if index % 3 == 0:
            made.append((prompt, params, None))
    return made


def run(engine: LLMEngine, requests: Sequence[Asked]) -> list[RequestOutput]:
    """All at once -> their last outputs"""
    for index, (prompt, params, adapter) in enumerate(requests):
        engine.add_request(str(index), prompt, params, lora_request=adapter)
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        last.update((output.request_id, output) for output in engine.step() if output.finished)
    return [last[str(index)] for index in range(len(requests))]


@pytest.fixture(scope="module")
def answers(tiny_model: Callable[[str], Path], adapters: list[Path]) -> list[RequestOutput]:
    """Each request alone, in a plain engine with a slot for one."""
    with opened(tiny_model("llama"), **{**SLOTS, "max_loras": 1}) as plain:
        return [run(plain, [request])[0] for request in work(adapters)]


ENGINES = [
    *((way, 8, "") for way in WAYS),
    *((way, 8, "padded") for way in PADDED),
    *((way, 2, "") for way in FEW_SLOTS),
]
ALWAYS = [
    *((way, 8, "") for way in SOME),
    *((way, 8, "padded") for way in SOME_PADDED),
    ("prefixes cached", 2, ""),
]


@pytest.mark.parametrize(("way", "slots", "graphs"), mostly_wide_rows(ENGINES, ALWAYS))
def test_each_has_in_any_company_what_it_has_alone(
    tiny_model: Callable[[str], Path],
    adapters: list[Path],
    answers: list[RequestOutput],
    way: str,
    slots: int,
    graphs: str,
) -> None:
    directory, options = tiny_model("llama"), {**SLOTS, **WAYS[way], "max_loras": slots}
    if "by the model itself" in way:
        options["speculative_config"] = {
            "method": "draft_model", "model": str(directory), "num_speculative_tokens": DRAFTS, "adaptive": False,
        }  # fmt: skip
    with opened(directory, None, graphs, **options) as engine:
        for _ in range(2):
            assert_same(run(engine, work(adapters)), answers, way)


def test_adapters_change_what_is_said(answers: list[RequestOutput]) -> None:
    said = {tuple(output.outputs[0].token_ids) for output in answers}
    assert len(said) > len(answers) * 2 // 3, "adapters that say the same prove little"


def test_many_adapters_pass_through_few_slots(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Of 12 adapters two are on the device at a time, and three in host memory."""
    directory, made = tiny_model("llama"), []
    for index in range(12):
        path = tmp_path / str(index)
        adapted = make_adapter(directory, path, seed=index, r=4, lora_alpha=8, target_modules=ATTENTION)
        made.append((path, adapted))
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    requests = [(prompt_of(index, 9), params, named(path)) for index, (path, _) in enumerate(made)] * 2
    for options in ({}, {"async_scheduling": True, "num_scheduler_steps": 4}):
        with opened(directory, enable_lora=True, max_loras=2, max_cpu_loras=3, **options) as engine:
            outputs = run(engine, requests)
        for (_, adapted), *both in zip(made, outputs[:12], outputs[12:], strict=True):
            assert_greedy(adapted, both)
            assert all(len(output.outputs[0].token_ids) == 6 for output in both)


def test_a_broken_adapter_fails_alone(
    tiny_model: Callable[[str], Path], adapters: list[Path], answers: list[RequestOutput], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(adapters[0], broken)
    (broken / "adapter_model.safetensors").write_bytes(b"not a file of tensors")
    other = tmp_path / "other"
    make_adapter(tiny_model("gemma2"), other, r=4, target_modules=ATTENTION)
    params = SamplingParams(max_tokens=4)
    wrong = [([5, 6], params, named(path)) for path in (broken, tmp_path / "nowhere", other, adapters[7])]
    with opened(tiny_model("llama"), **{**SLOTS, "max_lora_rank": 48}) as engine:
        fine = work(adapters[:7])
        found = run(engine, [*fine, *wrong])
        assert_same(found[: len(fine)], run(engine, fine), "beside it")
        failed = [output.outputs[0] for output in found[len(fine) :]]
    assert {output.finish_reason for output in failed} == {"error"}
    reasons = [str(output.stop_reason) for output in failed]
    assert str(broken) in reasons[0] and "nowhere" in reasons[1] and "max_lora_rank is 48" in reasons[3]
    assert "trained on another model" in reasons[2] or "none of this model's" in reasons[2]


def test_an_adapter_that_is_being_read_is_told_as_waiting(
    tiny_model: Callable[[str], Path], adapters: list[Path]
) -> None:
    """With a grammar before it, too."""
    grammar = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["it"]), max_tokens=4)

    def told(engine: LLMEngine) -> list[str]:
        (info,) = [metric for metric in engine.get_metrics() if metric.name == "vllm:lora_requests_info"]
        return [info.labels[f"{kind}_lora_adapters"] for kind in ("running", "waiting")]

    with opened(tiny_model("llama"), **SLOTS) as engine:
        assert told(engine) == ["", ""]
        engine.add_request("0", [5], SamplingParams(max_tokens=4), lora_request=named(adapters[1]))
        engine.add_request("1", [5], grammar, lora_request=named(adapters[0], 2))
        assert told(engine) == ["", "0,1"]
        while engine.has_unfinished_requests():
            engine.step()
        assert told(engine) == ["", ""]


def test_what_the_door_refuses(tiny_model: Callable[[str], Path], adapters: list[Path]) -> None:
    with opened(tiny_model("llama"), **SLOTS) as engine:
        for lora, said in (
            (object(), "must be a LoRARequest"),
            (LoRARequest("a", 0, "x"), "lora_int_id must be an integer of at least 1"),
            (LoRARequest("a", 1), "lora_request.lora_path must be a text of 1 to 4096"),
            (LoRARequest("a", 1, "x", load_inplace=True), "lora_request.load_inplace cannot be used"),
        ):
            with pytest.raises(InvalidRequestError, match=said):
                engine.add_request("0", [5], SamplingParams(), lora_request=lora)
        assert not engine.has_unfinished_requests()
    with opened(tiny_model("llama")) as engine, pytest.raises(InvalidRequestError, match="start it with enable_lora"):
        engine.add_request("0", [5], SamplingParams(), lora_request=named(adapters[0]))


def test_an_adapter_and_a_grammar(tiny_model: Callable[[str], Path], adapters: list[Path]) -> None:
    """The same tokens as with the grammar's masks by a function on the logits: that is, the likeliest that parse."""
    asked = StructuredOutputsParams(choice=["the quick brown fox", "the lazy dog", "it"])
    params = SamplingParams(structured_outputs=asked, temperature=0, max_tokens=24, logprobs=1)
    options = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 160}
    with LLM(str(tiny_model("llama")), **SLOTS, **options) as llm:
        requests = [None, *map(named, adapters), None]
        together = llm.generate([[5, 6, 7]] * len(requests), params, lora_request=requests, use_tqdm=False)
        alone = [llm.generate([[5, 6, 7]], params, lora_request=each, use_tqdm=False)[0] for each in requests]
        broken = SamplingParams(structured_outputs=StructuredOutputsParams(regex="((("))
        (refused,) = llm.generate([[5]], broken, lora_request=named(adapters[0]), use_tqdm=False)
    assert_same(together, alone, "together")
    assert all(output.outputs[0].text in asked.choice for output in together)
    assert len({output.outputs[0].cumulative_logprob for output in together}) > 5
    assert refused.outputs[0].finish_reason == "error"


def test_beam_search_has_the_adapter(tiny_model: Callable[[str], Path], adapters: list[Path]) -> None:
    """A beam of width one goes where greedy search goes."""
    options = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 160}
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(tiny_model("llama")), **SLOTS, **options) as llm:
        for lora in (None, named(adapters[0]), named(adapters[6])):
            (greedy_output,) = llm.generate([[5, 6, 7]], params, lora_request=lora, use_tqdm=False)
            search = BeamSearchParams(beam_width=1, max_tokens=8, ignore_eos=True)
            (found,) = llm.beam_search([{"prompt_token_ids": [5, 6, 7]}], search, lora_request=lora)
            assert found.sequences[0].tokens[3:] == list(greedy_output.outputs[0].token_ids)


def test_a_search_that_cannot_be_made_raises(
    tiny_model: Callable[[str], Path], adapters: list[Path], tmp_path: Path
) -> None:
    """The sentence of its adapter, or of its grammar; never no beams."""
    options = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 160}
    search, prompt = BeamSearchParams(beam_width=2, max_tokens=3), {"prompt_token_ids": [5, 6, 7]}
    with LLM(str(tiny_model("llama")), **SLOTS, **options) as llm:
        with pytest.raises(AdapterError, match=r"nowhere.*no such file"):
            llm.beam_search([prompt], search, lora_request=named(tmp_path / "nowhere"))
        broken = BeamSearchParams(beam_width=2, max_tokens=3, structured_outputs=StructuredOutputsParams(regex="((("))
        with pytest.raises(InvalidRequestError, match="regex"):
            llm.beam_search([prompt], broken, lora_request=named(adapters[0]))
        (found,) = llm.beam_search([prompt], search, lora_request=named(adapters[0]))
        assert len(found.sequences) == 2
