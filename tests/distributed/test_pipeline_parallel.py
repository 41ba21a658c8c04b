"""Stages of a model, each in a process of its own: they say what one device says, and compute beside each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.contract.step import StepPlan, StepResult
from cadence.core.errors import ConfigError
from cadence.core.model.architectures import ARCHITECTURES, ENCODER_DECODERS, ENCODERS, SEEING
from cadence.core.model.kv_spec import LayerKV, plan_layout
from cadence.engine.llm_engine import LLMEngine
from cadence.executor.local.processes import ProcessExecutor
from cadence.models.interface.stage import even_partition
from tests.e2e.test_speculation import BASE, DRAFTS, assert_same, num_accepted, run, work
from tests.helpers.head_layouts import LAYOUTS
from tests.helpers.tiny_decoders import DECODER_MODELS
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

DENSE = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "opt", "gpt2", "gemma2", "gemma3", "phi3")
STATES = ("mamba", "mamba2", "jamba", "bamba", "granite_hybrid", "falcon_h1", "lfm2", "qwen3_next")
MORE = tuple(family for family in DECODER_MODELS if family != "granite_moe")
FAMILIES = (*DENSE, *MORE, "qwen3_moe", "qwen3_moe_mixed", "mixtral", "granite_moe", *STATES)
OPTIONS = {"dtype": "float32", "max_model_len": 160, "num_gpu_blocks_override": 200}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=2)
SEEDED = SamplingParams(temperature=0.9, seed=7, max_tokens=24, ignore_eos=True, repetition_penalty=1.2)
PLAIN = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def test_every_file_of_models_has_a_family_here() -> None:
    others = {*ENCODERS.values(), *ENCODER_DECODERS.values(), *SEEING.values()}
    files = {where.rpartition(".")[2].partition(":")[0] for where in set(ARCHITECTURES.values()) - others}
    assert files - set(FAMILIES) == set()


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, ("gemma2", "qwen3_moe_mixed")))
def test_two_stages_say_what_one_device_says(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory, draw = str(tiny_model(family)), random.Random(3)
    prompts = [[draw.randrange(3, 300) for _ in range(length)] for length in (1, 17, 90)]
    found = []
    for options in ({}, {"pipeline_parallel_size": 2}):
        llm = LLM(directory, **OPTIONS, **options)
        found.append([llm.generate(prompts, params, use_tqdm=False) for params in (GREEDY, SEEDED, PLAIN)])
        del llm
    for alone, shared in zip(*found, strict=True):
        for one, other in zip(alone, shared, strict=True):
            assert other.outputs[0].token_ids == one.outputs[0].token_ids
            assert other.outputs[0].logprobs == one.outputs[0].logprobs
            assert other.prompt_logprobs == one.prompt_logprobs


def answers(directory: Path, **options: Any) -> list[RequestOutput]:
    with LLMEngine.from_engine_args(EngineArgs.from_options(model=str(directory), **{**BASE, **options})) as engine:
        return run(engine, work())


PROPOSERS = ("draft model", "ngram", "suffix", "eagle3", "mtp as in MiMo", "medusa")


@pytest.mark.parametrize("layout", mostly_wide(PROPOSERS, ("eagle3",)))
def test_drafts_of_the_last_stage_change_nothing(
    layout: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Streams that a head begins with come from both stages, tokens and drafts go back to the first."""
    directory = tiny_model("llama")
    keys: dict[str, Any] = {"method": layout, "num_speculative_tokens": DRAFTS, "adaptive": False}
    expected = answers(directory)
    if layout == "draft model":
        keys |= {"method": "draft_model", "model": str(directory)}
    elif layout in LAYOUTS:
        method, where, _ = LAYOUTS[layout](directory, tmp_path / "head")
        keys |= {"method": method} if method == "mtp" else {"method": method, "model": str(where)}
        directory = where if method == "mtp" else directory
    found = answers(directory, speculative_config=keys, pipeline_parallel_size=2)
    assert_same(found, expected, layout)
    if layout == "draft model":
        assert num_accepted(found) > 60


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
        pytest.param({"pipeline_parallel_size": 3, "pp_layer_partition": "1,2,1"}, marks=pytest.mark.wide),
        pytest.param({"pipeline_parallel_size": 2, "async_scheduling": False}, marks=pytest.mark.wide),
        pytest.param({"pipeline_parallel_size": 2, "num_scheduler_steps": 4}, marks=pytest.mark.wide),
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_shapes_of_ranks(options: dict[str, Any], tiny_model: Callable[[str], Path]) -> None:
    directory = tiny_model("gemma2")
    found, expected = answers(directory, **options), answers(directory)
    if "tensor_parallel_size" not in options:
        return assert_same(found, expected, options)
    for one, other in zip(expected, found, strict=True):
        assert [each.token_ids for each in other.outputs] == [each.token_ids for each in one.outputs]


def test_a_partition_that_is_none_is_said(tiny_model: Callable[[str], Path]) -> None:
    directory = str(tiny_model("llama"))
    for partition, said in (("1,2,3", "as many numbers"), ("4,x", "as many numbers"), ("1,9", "layers")):
        with pytest.raises(ConfigError, match=said) as caught:
            LLM(directory, **OPTIONS, pipeline_parallel_size=2, pp_layer_partition=partition)
        assert caught.value.field == "pp_layer_partition"
    with pytest.raises(ConfigError, match="at least one each"):
        LLM(directory, **OPTIONS, pipeline_parallel_size=9)


def test_layers_are_spread_as_evenly_as_can_be() -> None:
    assert even_partition(30, 4) == (8, 8, 7, 7) and even_partition(2, 2) == (1, 1)
    assert even_partition(30, 2, head_layers=6.0) == (18, 12) and even_partition(4, 2, 90.0) == (3, 1)
    for layers, stages in ((5, 1), (7, 3), (9, 9), (80, 7)):
        for head in (0.0, 1.5, 20.0):
            counts = even_partition(layers, stages, head)
            assert sum(counts) == layers and min(counts) >= 1 and len(counts) == stages


def test_stages_have_the_same_groups() -> None:
    """Whatever layers they have: the tables that the scheduler fills are those of all."""
    whole = plan_layout([LayerKV(2, 16, window) for window in (8, 8, 8, 0)], 4, "float32")
    first, last = whole.of_layers(range(2)), whole.of_layers(range(2, 4))
    assert [group.window for group in first.groups] == [group.window for group in whole.groups]
    assert sum(len(group.layers) for group in last.groups) == 2 and len(last.groups) == len(whole.groups)
    assert first.block_bytes <= whole.block_bytes and whole.of_layers(range(4)) == whole


@pytest.mark.parametrize("is_ahead", [True, False], ids=["ahead", "in turn"])
def test_a_step_is_sent_while_another_is_at_a_later_stage(
    is_ahead: bool, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that both stages compute at the same time. Neither is idle."""
    in_flight: list[int] = [0]

    def step(executor: ProcessExecutor, plan: StepPlan) -> None:
        in_flight.append(in_flight[-1] + 1)
        sent(executor, plan)

    def result(executor: ProcessExecutor) -> StepResult:
        found = heard(executor)
        in_flight.append(in_flight[-1] - 1)
        return found

    sent, heard = ProcessExecutor.step, ProcessExecutor.result
    monkeypatch.setattr(ProcessExecutor, "step", step)
    monkeypatch.setattr(ProcessExecutor, "result", result)
    with LLM(str(tiny_model("llama")), **OPTIONS, pipeline_parallel_size=2, async_scheduling=is_ahead) as llm:
        llm.generate([[5 + number] * 20 for number in range(16)], PLAIN, use_tqdm=False)
        busy = [metric.value for metric in llm.get_metrics() if metric.name == "cadence:rank_busy_seconds"]
    assert (max(in_flight) > 1) is is_ahead
    assert len(busy) == 2 and all(busy)
