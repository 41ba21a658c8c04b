"""With `rejection_sample_method: probabilistic` a whole engine writes what it would write without drafts, in
distribution; greedy requests, token for token."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence import RequestOutput, SamplingParams
from cadence.engine.llm_engine import LLMEngine
from tests.e2e.test_speculation import (
    LOOKED_UP,
    TOLD,
    alone,
    assert_same,
    num_accepted,
    opened,
    run,
    said,
    texts_of,
    work,
)
from tests.helpers.drafted_chains import deviation
from tests.helpers.tiny_models import VOCAB
from tests.helpers.told_proposer import Texts

pytestmark = pytest.mark.engine

BY_PROBABILITY = {"rejection_sample_method": "probabilistic"}
PROMPT, ALLOWED = [7, 30, 11], [5, 6, 40, 41]
NUM_TEXTS = 1500
WAYS: dict[str, dict[str, Any]] = {
    "as many drafts as pay": {"speculative_config": {"adaptive": True}},
    "bursts of 4, two steps in flight": {"num_scheduler_steps": 4, "async_scheduling": True},
    "often no room for drafts": {"max_num_batched_tokens": 16},
    "tiny pool": {"num_gpu_blocks_override": 24},
}


@pytest.fixture
def llama(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


def test_greedy_requests_say_the_same_and_others_repeat_themselves(llama: Path) -> None:
    requests = work()
    greedy = [request for request in requests if request[1].temperature == 0]
    with opened(llama) as plain:
        expected = alone(plain, greedy)
    with opened(llama, speculative_config={**LOOKED_UP, **BY_PROBABILITY}) as engine:
        assert_same(run(engine, greedy), expected, "greedy")
        together = run(engine, requests)
        assert num_accepted(together) > num_accepted([together[0], together[2], together[4], together[6]])
        assert_same(run(engine, requests), together, "again")
        assert_same(alone(engine, requests), together, "alone")
    assert [said(together[index]) for index in (0, 2, 4, 6)] == [said(output) for output in expected]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_run_brings_every_request_to_its_end(llama: Path, way: str) -> None:
    """Greedy ones beside random ones, token for token."""
    requests = work()
    with opened(llama) as plain:
        expected = run(plain, requests)
    texts = Texts(VOCAB)
    texts.tell(texts_of(expected), 0.7)
    asked = {**TOLD, **BY_PROBABILITY, **WAYS[way].get("speculative_config", {})}
    with opened(llama, texts, **{**WAYS[way], "speculative_config": asked}) as engine:
        found = run(engine, requests)
    assert num_accepted(found) > 0
    for (_, params), got, wanted in zip(requests, found, expected, strict=True):
        assert all(each.finish_reason in ("stop", "length") for each in got.outputs)
        if params.temperature == 0:
            assert said(got) == said(wanted)


def test_logprobs_are_the_targets(llama: Path) -> None:
    """Of each token that was chosen, drafts and others: what a prompt of the same tokens has."""
    requests = [
        ([9, 8, 9, 8, 9], SamplingParams(temperature=0.5, seed=seed, logprobs=0, max_tokens=40)) for seed in range(6)
    ]
    with opened(llama, speculative_config={**LOOKED_UP, **BY_PROBABILITY}) as engine:
        outputs = run(engine, requests)
    assert num_accepted(outputs) > 0
    with opened(llama) as plain:
        for output in outputs:
            tokens = list(output.outputs[0].token_ids)
            text = [*(output.prompt_token_ids or []), *tokens]
            again = run(plain, [(text, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))])[0]
            assert again.prompt_logprobs and output.outputs[0].logprobs
            for at, token in enumerate(tokens):
                wanted = again.prompt_logprobs[5 + at]
                assert wanted is not None
                found = output.outputs[0].logprobs[at][token].logprob
                assert found == pytest.approx(wanted[token].logprob, abs=1e-4)


def next_token(engine: LLMEngine, text: list[int]) -> np.ndarray:
    """[len(ALLOWED)] probabilities."""
    asked = SamplingParams(temperature=0, max_tokens=1, logprob_token_ids=ALLOWED)
    logprobs = run(engine, [(text, asked)])[0].outputs[0].logprobs
    assert logprobs
    weights = np.exp([logprobs[0][token].logprob / 2 for token in ALLOWED])  # at a temperature of 2
    return np.array(weights / weights.sum())


def places(output: RequestOutput) -> tuple[int, ...]:
    return tuple(ALLOWED.index(token) for token in output.outputs[0].token_ids)


def test_drafts_stand_where_they_are_verified(llama: Path) -> None:
    """Texts of three tokens, of four that are allowed; the second one is drafted."""
    size = len(ALLOWED)
    with opened(llama) as plain:
        first = next_token(plain, PROMPT)
        second = np.stack([next_token(plain, [*PROMPT, a]) for a in ALLOWED])
        third = np.stack([[next_token(plain, [*PROMPT, a, b]) for b in ALLOWED] for a in ALLOWED])
    texts = Texts(VOCAB)
    texts.tell([[*PROMPT, a, ALLOWED[(index + 1) % size]] for index, a in enumerate(ALLOWED)], 1.0)
    common = {"temperature": 2.0, "max_tokens": 3, "allowed_token_ids": ALLOWED, "ignore_eos": True}
    requests = [(PROMPT, SamplingParams(seed=seed, **common)) for seed in range(NUM_TEXTS)]
    options = {"speculative_config": {**TOLD, **BY_PROBABILITY}, "max_num_seqs": 128, "max_num_batched_tokens": 1024}
    with opened(llama, texts, **options, num_gpu_blocks_override=300) as engine:
        outputs = run(engine, requests)
    counts = np.zeros((size,) * 3)
    np.add.at(counts, tuple(np.array([places(output) for output in outputs]).T), 1)
    expected = first[:, None, None] * second[:, :, None] * third * NUM_TEXTS
    assert deviation(counts, expected) < 4.0
    kept = sum(first[a] * second[a, (a + 1) % size] for a in range(size)) * NUM_TEXTS
    found = num_accepted(outputs)
    assert deviation(np.array([found, NUM_TEXTS - found]), np.array([kept, NUM_TEXTS - kept])) < 4.0


@pytest.fixture
def similar(llama: Path, tmp_path: Path) -> Path:
    """A model that is nearly llama."""
    generator = torch.Generator().manual_seed(3)
    tensors = load_file(llama / "model.safetensors")
    for name, tensor in tensors.items():
        noise = torch.randn(tensor.shape, generator=generator) * 0.05 * tensor.std()
        tensors[name] = tensor + noise if tensor.dim() == 2 else tensor
    for file in llama.iterdir():
        shutil.copy(file, tmp_path / file.name)
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def drafted_by(model: Path, num_tokens: int) -> dict[str, Any]:
    method = {"method": "draft_model", "model": str(model), "num_speculative_tokens": num_tokens, "adaptive": False}
    return {"speculative_config": {**method, **BY_PROBABILITY}, "max_num_seqs": 128, "num_gpu_blocks_override": 300}


@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_a_model_that_drafts_for_itself_is_always_right(llama: Path, temperature: float) -> None:
    params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=30, ignore_eos=True) for seed in range(8)]
    with opened(llama, **drafted_by(llama, 4)) as engine:
        outputs = run(engine, [([5, 9 + seed], each) for seed, each in enumerate(params)])
    drafts = [output.speculation for output in outputs]
    assert all(each.num_drafted == each.num_accepted > 20 for each in drafts)


def likely_next(engine: LLMEngine, texts: list[list[int]], temperature: float) -> list[dict[int, float]]:
    """The most likely tokens after each text, with their probabilities."""
    asked = SamplingParams(temperature=0, max_tokens=1, logprobs=VOCAB)
    found = []
    for output in run(engine, [(text, asked) for text in texts]):
        (logprobs,) = output.outputs[0].logprobs or []
        weights = {token: np.exp(one.logprob / temperature) for token, one in logprobs.items()}
        total = sum(weights.values())
        likely = sorted(weights, key=weights.__getitem__, reverse=True)[:12]
        found.append({token: weights[token] / total for token in likely})
    return found


def test_drafts_of_a_model_leave_the_distribution_as_it_is(llama: Path, similar: Path) -> None:
    """Texts of four tokens; the second and the third are drafted. The first three are counted."""
    temperature = 0.25
    expected: dict[tuple[int, ...], float] = {(): NUM_TEXTS}
    with opened(llama, max_logprobs=VOCAB) as plain:
        for _ in range(3):
            likely = likely_next(plain, [[*PROMPT, *text] for text in expected], temperature)
            expected = {
                (*text, token): count * p
                for (text, count), step in zip(expected.items(), likely, strict=True)
                for token, p in step.items()
                if count * p >= 5
            }
    params = {"temperature": temperature, "max_tokens": 4, "ignore_eos": True}
    with opened(llama, **drafted_by(similar, 2)) as engine:
        outputs = run(engine, [(PROMPT, SamplingParams(seed=seed, **params)) for seed in range(NUM_TEXTS)])
    found = Counter(tuple(output.outputs[0].token_ids[:3]) for output in outputs)
    counts = [found[text] for text in expected]
    others = [NUM_TEXTS - sum(counts), NUM_TEXTS - sum(expected.values())]
    assert len(counts) > 20 and others[1] < NUM_TEXTS / 2
    assert deviation(np.array([*counts, others[0]]), np.array([*expected.values(), others[1]])) < 4.0
    assert 0.2 < num_accepted(outputs) / sum(output.speculation.num_drafted for output in outputs) < 0.95
