"""On a CPU the decode step of every family is a list of C calls: no torch between them, in any type of activation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import LLM, SamplingParams
from cadence.core.model.architectures import ARCHITECTURES, ENCODER_DECODERS, ENCODERS, SEEING
from cadence.device.calls import Calls, CommandGraph
from cadence.models.registry import model_class
from tests.helpers.tiny_models import FAMILIES
from tests.helpers.tiny_states import STATE_FAMILIES
from tests.helpers.wide import DIFFERENT, mostly_wide

pytestmark = pytest.mark.engine

PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
STATES_TOO = (*FAMILIES, *STATE_FAMILIES)
SAME_LAYERS = {"llama_linear", "llama_dynamic", "llama_yarn", "phi3_longrope"}  # tables differ, nothing else


@pytest.mark.parametrize(
    "family",
    mostly_wide(
        [family for family in STATES_TOO if family not in SAME_LAYERS], [*DIFFERENT, "gemma3", "phi3", "mamba2"]
    ),
)
def test_a_decode_step_is_recorded(
    family: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tiny_model(family), monkeypatch)


@pytest.mark.parametrize("family", mostly_wide(["llama", "qwen3"], ["llama"]))
def test_so_is_one_through_transformers_whose_blocks_are_ours(
    family: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tiny_model(family), monkeypatch, model_impl="transformers")


def check(model: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
    computed = []  # by torch, of each recording: "" = nothing
    record = Calls.record

    def noted(calls: Calls, work: Callable) -> tuple:
        graph, output = record(calls, work)
        computed.append("" if isinstance(graph, CommandGraph) else graph.obstacle or "all of it")
        return graph, output

    monkeypatch.setattr(Calls, "record", noted)
    for dtype in ("float32", "bfloat16"):
        computed.clear()
        llm = LLM(str(model), dtype=dtype, max_model_len=128, **options)
        llm.generate([[5, 6, 7], [9] * 20], PARAMS, use_tqdm=False)
        assert computed and not any(computed), (model.name, dtype, computed)


def test_every_registered_architecture_is_among_them(tiny_model: Callable[[str], Path]) -> None:
    families = [family for family in STATES_TOO if family not in SAME_LAYERS]
    configs = [json.loads((tiny_model(family) / "config.json").read_text()) for family in families]
    tested = {model_class(config["architectures"][0]) for config in configs}
    assert {model_class(name) for name in {*ARCHITECTURES} - {*ENCODERS} - {*ENCODER_DECODERS} - {*SEEING}} == tested
