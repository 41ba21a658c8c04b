"""A forward that returns the states of some tokens: on a CPU's kernels it is recorded, with runs of any length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cadence.core.model.kv_spec import plan_layout
from cadence.device.calls import Calls, CommandGraph
from cadence.device.cpu import CpuDevice
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens
from cadence.runner.caches.storage import allocate_kv_cache
from tests.helpers.head_layouts import Target
from tests.helpers.tiny_models import VOCAB

pytestmark = pytest.mark.device

RUNS = (5, 1, 4)  # tokens that each row computes, after none
BLOCK = 16


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def batch_of_runs(num_groups: int) -> AttentionBatch:
    """Every row has one block of each group."""
    tables = 1 + torch.arange(num_groups * len(RUNS), dtype=torch.int32).view(num_groups, len(RUNS), 1)
    within = torch.cat([torch.arange(count) for count in RUNS])
    slots = tables[:, :, 0].long().repeat_interleave(torch.tensor(RUNS), dim=1) * BLOCK + within
    return AttentionBatch(
        rows=torch.arange(len(RUNS), dtype=torch.int32),
        query_start=int32([0, *torch.tensor(RUNS).cumsum(0).tolist()]),
        seq_lens=int32(list(RUNS)),
        block_tables=tuple(tables),
        slots=tuple(slots),
        num_single=0,
        max_query_len=max(RUNS),
    )


def test_a_model_says_after_which_keys_only_the_wanted_tokens_go_on(tiny_model: Callable[[str], Path]) -> None:
    """Its last layer, however many caches the forward has: those of a proposer may lie among them."""
    target = Target(tiny_model("llama"), ReferenceOps())
    assert [layer.attn.narrows for layer in target.model.layers] == [False] * (len(target.model.layers) - 1) + [True]
    layout = plan_layout(target.model.kv_layers(), BLOCK, "float32")
    batch = batch_of_runs(len(layout.groups))
    caches = allocate_kv_cache(layout, 1 + len(layout.groups) * len(RUNS), CpuDevice(1))
    at = batch.query_start[1:].long() - 1
    last = LastTokens(at, batch.rows, batch.seq_lens, torch.arange(len(RUNS) + 1, dtype=torch.int32))
    inputs = ModelInputs(torch.arange(sum(RUNS), dtype=torch.int32), torch.cat([torch.arange(run) for run in RUNS]))
    with torch.inference_mode():
        every = target.model(inputs, ForwardContext(target.build.ops, batch, caches))
        found = target.model(inputs, ForwardContext(target.build.ops, batch, [*caches, caches[0]], last))
    torch.testing.assert_close(found, every[at])


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "qwen3"])
def test_last_tokens_of_runs_are_recorded(family: str, tiny_model: Callable[[str], Path]) -> None:
    calls = Calls(2)
    target = Target(tiny_model(family), CpuOps(calls))
    layout = plan_layout(target.model.kv_layers(), BLOCK, "float32")
    batch = batch_of_runs(len(layout.groups))
    caches = allocate_kv_cache(layout, 1 + len(layout.groups) * len(RUNS), CpuDevice(1))
    positions = torch.cat([torch.arange(count) for count in RUNS])
    inputs = ModelInputs(torch.zeros(sum(RUNS), dtype=torch.int32), positions)
    at = batch.query_start[1:].long() - 1
    last = LastTokens(at, batch.rows, batch.seq_lens, torch.arange(len(RUNS) + 1, dtype=torch.int32))
    some = ForwardContext(target.build.ops, batch, caches, last)
    every = ForwardContext(target.build.ops, batch, caches, EVERY_TOKEN)

    def forward() -> torch.Tensor:
        return target.model.logits(target.model(inputs, some), some)

    with torch.inference_mode():
        graph, _ = calls.record(forward)
        assert isinstance(graph, CommandGraph)
        for seed in range(3):
            tokens = torch.randint(0, VOCAB, (sum(RUNS),), generator=torch.Generator().manual_seed(seed))
            inputs.ids.copy_(tokens)
            wanted = target.model.logits(target.model(inputs, every)[at], every)
            assert torch.equal(graph.replay(forward), wanted)
