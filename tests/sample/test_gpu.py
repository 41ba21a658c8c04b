"""On a GPU: the tokens of the CPU, and never a wait for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadence.kernels.select import select_ops
from tests.helpers.sample_bench import MIXED, Bench, some_logits

pytestmark = [pytest.mark.device, pytest.mark.gpu]


@pytest.fixture(params=["reference", "triton"])
def kernels(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def gpu_bench(vocab: int, num_rows: int, kernels: str) -> Bench:
    from cadence.device.cuda import CudaDevice

    return Bench(vocab, num_rows, hardware=(CudaDevice(), select_ops(CudaDevice(), kernels)))


@pytest.mark.parametrize("vocab", [300, 50_000])
def test_same_tokens_as_the_cpu(vocab: int, kernels: str) -> None:
    count = 2 * len(MIXED)
    ours, theirs = gpu_bench(vocab, count, kernels), Bench(vocab, count)
    for bench in (ours, theirs):
        for row, sampling in enumerate(MIXED * 2):
            bench.add(row, [3, 4, 5], [9, 2, 2], sampler_seed=row, **sampling)
    logits = some_logits(count, vocab, seed=5)
    got, expected = ours.sample(range(count), logits), theirs.sample(range(count), logits)
    assert got.tokens == expected.tokens
    assert not got.errors
    for row in range(count):
        assert ours.sample([row], logits[row]).tokens == [got.tokens[row]]
    for row, logprobs in expected.logprobs.items():
        np.testing.assert_array_equal(got.logprobs[row].token_ids_np, logprobs.token_ids_np)
        np.testing.assert_allclose(got.logprobs[row].logprobs_np, logprobs.logprobs_np, atol=1e-4)
        assert got.logprobs[row].rank == logprobs.rank


def test_nothing_waits_for_the_device(kernels: str) -> None:
    silent = [sampling for sampling in MIXED if "logits_processors" not in sampling]  # callables may wait
    bench = gpu_bench(1000, len(silent), kernels)
    for row, sampling in enumerate(silent):
        bench.add(row, [3, 4, 5], [9, 2, 2], sampler_seed=row, **sampling)
    for rows in (list(range(len(silent))), [3], [0, 4, 5]):
        bench.sample(rows, some_logits(len(rows), 1000))  # compiles what is compiled on first use
        context, logits = bench.prepare(rows, some_logits(len(rows), 1000))
        torch.cuda.set_sync_debug_mode("error")
        try:
            bench.pipeline.sample(logits, context)
        finally:
            torch.cuda.set_sync_debug_mode("default")
