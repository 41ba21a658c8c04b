"""Rejection sampling writes what the target alone would write, in distribution, whatever the drafts are. Seeds are
fixed: each of these passes or fails for good."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cadence.sample import rejection
from cadence.sample.output import BAD_MODEL
from tests.helpers.drafted_chains import Chains, QueueingCpu, deviation
from tests.helpers.sample_bench import some_logits
from tests.helpers.wide import mostly_wide_rows

pytestmark = pytest.mark.device

VOCAB = 5
LIMIT = 4.0  # standard deviations: exceeded by chance once in thirty thousand
TARGET = torch.from_numpy(some_logits(VOCAB, VOCAB, seed=11)) * 0.7
OTHER = torch.from_numpy(some_logits(VOCAB, VOCAB, seed=12)) * 0.7
SURE = torch.full((VOCAB, VOCAB), -math.inf).scatter_(1, torch.tensor([[2], [0], [2], [4], [1]]), 0.0)
SOME_IDS = torch.tensor([3, 0, 4])

DRAFTS: dict[str, dict[str, Any]] = {
    "drawn": {"draft": OTHER},
    "looked up": {"draft": SURE, "sure": True},
    "drawn, then taken as looked up": {"draft": OTHER, "sure": True},
    "drawn from some tokens": {"draft": OTHER[:, :3], "target_ids": SOME_IDS},
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("drawn", {"temperature": 0.6}),
    ("drawn", {"temperature": 1.4, "top_p": 0.8}),
    ("drawn from some tokens", {"top_k": 4, "min_p": 0.05}),
    ("looked up", {"temperature": 0.8, "top_p": 0.8}),
    ("drawn, then taken as looked up", {}),
]


@pytest.fixture(scope="module")
def drawn() -> Chains:
    return Chains(TARGET, OTHER)


@pytest.mark.parametrize(("drafts", "sampling"), mostly_wide_rows(CASES, CASES[1:4]), ids=str)
def test_texts_are_distributed_as_the_targets(drafts: str, sampling: dict[str, Any]) -> None:
    """Three tokens of each text together, of 20,000 texts."""
    chains = Chains(TARGET, sampling=sampling, **DRAFTS[drafts])
    texts = chains.run()
    assert chains.deviation(texts) < LIMIT
    assert 0.05 < chains.num_kept / chains.num_verified < 0.95


def test_so_they_are_at_a_temperature_of_one(drawn: Chains) -> None:
    assert drawn.deviation(drawn.run()) < LIMIT


WRONG: dict[str, tuple[str, Callable[..., Any]]] = {
    "accepts too often": ("accepts", lambda uniform, p, q: uniform * q * 0.8 < p),
    "accepts without regard to q": ("accepts", lambda uniform, p, q: uniform < p),
    "draws what is left from p": ("residual", lambda target, source: target),
    "draws what is left from all that q has less of": ("residual", lambda target, source: target * (source < target)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_broken_rule_is_found(wrong: str, drawn: Chains, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, *WRONG[wrong])
    assert drawn.deviation(drawn.run()) > 2 * LIMIT


def test_noise_that_is_used_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where drafts have the noise of what is chosen instead of them."""
    right = rejection.salted
    monkeypatch.setattr(rejection, "salted", lambda seed, salt: seed if salt == 1 else right(seed, salt))
    chains = Chains(TARGET, OTHER)
    assert chains.deviation(chains.run()) > 1.5 * LIMIT


@pytest.mark.parametrize("drafts", DRAFTS)
def test_texts_are_the_same_where_draws_are_captured(drafts: str) -> None:
    options = {"sampling": {"temperature": 0.8}, "num_rows": 1000, **DRAFTS[drafts]}
    chains, plain = Chains(TARGET, device=QueueingCpu(), **options), Chains(TARGET, **options)
    assert chains.pipeline.only_draws(np.arange(5)) and not plain.pipeline.only_draws(np.arange(5))
    assert torch.equal(chains.run(), plain.run())


def test_drafts_of_the_target_itself_are_all_kept() -> None:
    for sampling in ({}, {"temperature": 0.3}, {"temperature": 1.7}):
        chains = Chains(TARGET, TARGET, num_rows=3000, sampling=sampling)
        texts = chains.run()
        assert chains.num_kept == chains.num_verified == 2 * 3000
        assert chains.deviation(texts) < LIMIT


def test_drafts_are_kept_as_often_as_distributions_overlap() -> None:
    chains = Chains(TARGET, OTHER, num_drafts=1, num_tokens=2, num_rows=5000)
    chains.run()
    p, q = TARGET[0].softmax(-1), OTHER[0].softmax(-1)
    kept, verified = chains.num_kept, chains.num_verified
    assert verified == 5000
    overlap = float(torch.minimum(p, q).sum())
    expected = np.array([overlap, 1 - overlap]) * verified
    assert deviation(np.array([kept, verified - kept]), expected) < LIMIT


def test_a_text_depends_on_its_seed_and_its_drafts_alone() -> None:
    many, few = Chains(TARGET, OTHER, num_rows=300), Chains(TARGET, OTHER, num_rows=7)
    assert torch.equal(many.run()[:7], few.run())


def test_greedy_rows_keep_what_is_most_likely() -> None:
    for drafts in DRAFTS.values():
        for device in ({}, {"device": QueueingCpu()}):
            chains = Chains(TARGET, num_rows=20, sampling={"temperature": 0}, **drafts, **device)
            best, token = [], 0
            for _ in range(3):
                token = int(TARGET[token].argmax())
                best.append(token)
            assert chains.run().tolist() == [best] * 20


def test_nan_fails_a_line_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGET.clone()
    target[4] = math.nan
    chains = Chains(target, OTHER, num_rows=2000)
    seen: list[torch.Tensor] = []
    sample = chains.pipeline.sample

    def noted(logits: torch.Tensor, ctx: Any) -> Any:
        output = sample(logits, ctx)
        _, _, faults = output.unpack(chains.device.download(output.tensors()).wait())
        assert set(faults.values()) <= {BAD_MODEL}
        lines = torch.zeros(len(logits), dtype=torch.bool)
        lines[list(faults)] = True
        assert torch.equal(lines, logits[:, 0].isnan())
        seen.append(lines)
        return output

    monkeypatch.setattr(chains.pipeline, "sample", noted)
    texts = chains.run()
    assert any(lines.any() for lines in seen)
    sound = ~(texts[:, :2] == 4).any(dim=1)
    assert sound.any() and (texts[sound] < VOCAB).all()


@pytest.mark.gpu
@pytest.mark.parametrize("drafts", DRAFTS)
def test_on_a_gpu_texts_are_those_of_the_cpu(drafts: str) -> None:
    from cadence.device.cuda import CudaDevice
    from cadence.kernels.select import select_ops

    device = CudaDevice()
    ours = Chains(TARGET, device=device, ops=select_ops(device, "triton"), **DRAFTS[drafts])
    texts = ours.run()
    assert ours.deviation(texts) < LIMIT
    same = (texts == Chains(TARGET, **DRAFTS[drafts]).run()).all(dim=1)
    assert same.float().mean() > 0.999  # but for what rounding decides
