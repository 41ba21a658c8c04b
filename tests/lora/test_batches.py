"""Adapters side by side: in a batch every sequence has the bits that it has alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cadence.device.calls import Calls, CommandGraph
from cadence.kernels.cpu.ops import CpuOps
from cadence.lora.adapter import open_adapter
from tests.helpers.adapters import SLOTS, AdaptedModel, Run, files_of, make_adapter
from tests.helpers.tiny_models import VOCAB

pytestmark = pytest.mark.device

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANKS = (1, 3, 4, 8, 16, 33, 48, 64)


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def adapters(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Eight, of ranks 1 to 64: some of the attention alone, one with everything there is, of 16 bits and of 32."""
    root, made = tmp_path_factory.mktemp("adapters"), []
    for index, rank in enumerate(RANKS):
        config = {"r": rank, "lora_alpha": 2 * rank**0.5, "target_modules": LINEARS[: 3 if index % 3 else 7]}
        if index == 5:
            config |= {"use_dora": True, "bias": "all", "modules_to_save": ["embed_tokens", "lm_head"]}
        if index == 6:
            config |= {"target_modules": [*LINEARS, "embed_tokens", "lm_head"]}
        dtype = torch.bfloat16 if index % 2 else torch.float32
        make_adapter(tiny_model("llama_bias"), root / str(index), seed=index, dtype=dtype, **config)
        made.append(root / str(index))
    return made


@pytest.fixture
def model(tiny_model: Callable[[str], Path], adapters: list[Path]) -> AdaptedModel:
    model = AdaptedModel(files_of(tiny_model("llama_bias")), CpuOps(Calls(2)))
    for slot, adapter in enumerate(adapters):
        model.put(slot, adapter)
    return model


@pytest.mark.parametrize("lengths", [(1,) * 12, (5, 1, 9, 2, 17, 1, 3, 4, 6, 1, 12, 8)], ids=["decode", "mixed"])
@pytest.mark.parametrize("last_only", [False, True])
def test_each_has_the_bits_it_has_alone(model: AdaptedModel, lengths: tuple[int, ...], last_only: bool) -> None:
    slots = [*range(SLOTS), -1, 3, 5, -1]
    runs = [Run(tokens(n, seed), slot) for seed, (n, slot) in enumerate(zip(lengths, slots, strict=True))]
    runs.sort(key=lambda run: len(run.ids) > 1)  # runs of one token come first
    together = model.logits(runs, last_only=last_only)
    assert len({logits[-1].argmax().item() for logits in together}) > 4, "adapters that say the same prove little"
    for run, logits in zip(runs, together, strict=True):
        alone = model.logits([run], last_only=last_only)[0]
        assert torch.equal(logits, alone), f"slot {run.slot}"


def test_a_recorded_forward_follows_the_slots(model: AdaptedModel, adapters: list[Path]) -> None:
    """Recorded once, it serves other rows' adapters, and others in the same slots."""
    ops = model.ops
    assert isinstance(ops, CpuOps)
    runs = [Run(tokens(6, seed), seed) for seed in range(4)]
    ctx, inputs = model.context(runs)
    with torch.inference_mode():
        graph, first = ops._calls.record(lambda: model.model.logits(model.model(inputs, ctx), ctx))
        assert isinstance(graph, CommandGraph)
        before = first.clone()
        assert torch.equal(before, torch.cat(model.logits(runs)))
        ctx.lora.tokens.copy_(torch.tensor([5, -1, 6, 7], dtype=torch.int32).repeat_interleave(6))
        moved = [Run(run.ids, slot) for run, slot in zip(runs, (5, -1, 6, 7), strict=True)]
        assert torch.equal(graph.replay(lambda: first), torch.cat(model.logits(moved)))
        assert not model.put(6, adapters[0]), "nothing is adapted that was not before"
        assert torch.equal(graph.replay(lambda: first), torch.cat(model.logits(moved)))
        model.lora.clear(5)
        moved[0] = Run(moved[0].ids, -1)
        assert torch.equal(graph.replay(lambda: first), torch.cat(model.logits(moved)))


def test_memory_is_known_beforehand(model: AdaptedModel, adapters: list[Path]) -> None:
    for adapter in (adapters[0], adapters[7]):
        prepared = model.lora.prepare(open_adapter(adapter, model.limits))
        assert prepared.num_bytes <= model.lora.slot_bytes


def test_sixteen_bits_stay_sixteen(model: AdaptedModel, adapters: list[Path]) -> None:
    """Adapters of 16 bits take half the memory, and are read in half the time."""
    wide, narrow = (model.lora.prepare(open_adapter(adapters[i], model.limits)) for i in (4, 7))
    assert {span.a.dtype for span in wide.parts.values()} == {torch.float32}
    assert {span.a.dtype for span in narrow.parts.values()} == {torch.bfloat16}
