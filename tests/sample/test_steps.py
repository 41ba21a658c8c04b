"""Every transformation of the logits against plain Python, alone and in company."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from cadence import sample
from cadence.core.sampling_params import SamplingParams
from cadence.sample.filters import leading_by_sort, leading_of_candidates
from tests.helpers.sample_bench import MIXED, Bench, oracle, some_logits
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

VOCAB = 12
tokens_st = st.lists(st.integers(0, VOCAB - 1), max_size=12)


def distribution_of(logits: Any, **row: Any) -> np.ndarray:
    bench = Bench(len(logits), num_rows=2, mode="processed_logprobs")
    bench.add(1, logprobs=-1, **row)
    return bench.distribution(1, logits)


def barred(logits: Any, **row: Any) -> list[int]:
    """Tokens the row cannot draw."""
    return np.flatnonzero(distribution_of(logits, **row) == 0).tolist()


@given(
    prompt=tokens_st.filter(len),
    output=tokens_st,
    logits=st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB),
    repetition=st.floats(0.2, 4),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
)
@examples(20, 60)
def test_penalties(
    prompt: list[int], output: list[int], logits: list[float], repetition: float, frequency: float, presence: float
) -> None:
    sampling = {
        "repetition_penalty": repetition,
        "frequency_penalty": frequency,
        "presence_penalty": presence,
        "temperature": 0.7,
    }
    found = distribution_of(logits, prompt=prompt, output=output, **sampling)
    np.testing.assert_allclose(found, oracle(logits, prompt, output, SamplingParams(**sampling)), atol=3e-5)


@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.05, 0.3, 1.0, 2.0]),
    top_k=st.integers(0, VOCAB + 3),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.51, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)
@examples(30, 120)
def test_filters(seed: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = some_logits(VOCAB, seed=seed)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    found = distribution_of(logits, **sampling)
    np.testing.assert_allclose(found, oracle(logits, [0], [], SamplingParams(**sampling)), atol=1e-5)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_p": 0.5}, [0, 1]),  # exactly reached: the smallest set that reaches it
        ({"top_p": 0.5000001}, [0, 1, 2]),
        ({"top_p": 0.25}, [0]),
        ({"top_p": 0.75}, [0, 1, 2]),
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_k": 3, "top_p": 0.5}, [0, 1]),
        ({"min_p": 1.0}, [0, 1, 2, 3]),
    ],
    ids=str,
)
def test_equal_logits_go_to_the_lower_ids(sampling: dict[str, Any], kept: list[int]) -> None:
    """Four tokens of a quarter each, and one of nothing in between."""
    logits = [3.0, 3.0, 3.0, -60.0, 3.0]
    ids = [0, 1, 2, 4]
    assert np.flatnonzero(distribution_of(logits, **sampling) > 1e-9).tolist() == [ids[i] for i in kept]


def test_top_k_before_top_p() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    # Of the two best, 0.4 / 0.7 reaches 0.55; of all four, it takes two tokens to do so.
    assert barred(logits, top_p=0.55) == [2, 3]
    assert barred(logits, top_p=0.55, top_k=2) == [1, 2, 3]


@pytest.mark.parametrize("count", [1, 7, 50, 399])
def test_looking_at_candidates_first_changes_nothing(count: int) -> None:
    logits = torch.from_numpy(np.round(some_logits(60, 400, seed=6) * 4) / 4)  # equal logits at the boundary too
    top_p = torch.linspace(0.02, 0.98, 60)
    assert torch.equal(leading_of_candidates(logits, top_p, count), leading_by_sort(logits, top_p))


def test_greedy_rows_keep_their_processed_logprobs_unscaled() -> None:
    logits = some_logits(VOCAB)
    found = distribution_of(logits, temperature=0)
    np.testing.assert_allclose(found, oracle(logits, [0], [], SamplingParams()), atol=1e-6)


def test_allowed_token_ids() -> None:
    assert barred(some_logits(VOCAB), allowed_token_ids=[3, 7, 3]) == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]


def test_logit_bias_is_added_before_the_temperature() -> None:
    logits = some_logits(VOCAB)
    shifted = logits.copy()
    shifted[[2, 5]] += [1.5, -100.0]
    found = distribution_of(logits, logit_bias={2: 1.5, "5": -1e9}, temperature=0.5)
    np.testing.assert_allclose(found, oracle(shifted, [0], [], SamplingParams(temperature=0.5)), atol=1e-6)


def test_a_bias_cannot_bring_back_what_is_not_allowed() -> None:
    assert barred([0.0, 0.0, 0.0], allowed_token_ids=[1], logit_bias={2: 100.0}) == [0, 2]


@pytest.mark.parametrize(
    ("prompt", "output", "words", "expected"),
    [
        ([0], [], [[4]], [4]),
        ([0], [5], [[5, 6]], [6]),
        ([5], [], [[5, 6]], []),  # the prompt is not output
        ([0, 5], [1], [[5, 1, 6]], []),
        ([0], [5, 1], [[5, 1, 6]], [6]),
        ([0], [1, 5], [[5, 1, 6]], []),
        ([0], [5, 5], [[5, 5, 5]], [5]),
        ([0], [5], [[1, 6], [5, 6], [2, 6]], [6]),  # one of several with the same end
        ([0], [5], [[5, 6], [4], [5, 7], [1, 2, 3, 4, 5, 8]], [4, 6, 7]),
        ([0], [1, 2], [[9, 9, 9, 1, 2, 3]], []),  # longer than the output
    ],
)
def test_bad_words(prompt: list[int], output: list[int], words: list[list[int]], expected: list[int]) -> None:
    assert barred(np.zeros(VOCAB), prompt=prompt, output=output, bad_words_token_ids=words) == expected


@pytest.mark.parametrize(("produced", "expected"), [(0, [3, 4]), (1, [3, 4]), (2, []), (5, [])])
def test_min_tokens(produced: int, expected: list[int]) -> None:
    row = {"prompt": [1, 1, 1], "output": [2] * produced, "stops": [4, 3], "min_tokens": 2}
    assert barred(np.zeros(VOCAB), **row) == expected


def test_custom_processors_get_what_they_take() -> None:
    seen: list[Any] = []

    def short(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(output)
        return logits + torch.tensor([5.0, 0, 0])

    def long(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append((prompt, output, logits.tolist()))
        logits[0] = -5.0  # in place is fine, as long as it is returned
        return logits

    bench = Bench(vocab=3, processors=[short])
    bench.add(0, [1, 2], [2, 2, 0], temperature=0, logits_processors=[long])
    bench.add(1, [1], [], temperature=0)
    assert bench.sample([0, 1], [[1, 0, 2], [0, 0, 0]]).tokens == [2, 0]
    assert seen == [[2, 2, 0], ([1, 2], [2, 2, 0], [6.0, 0.0, 2.0]), []]


def fails(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (fails, "fails: KeyError: 'no such thing'"),
        (lambda output, logits: None, "NoneType, not a tensor"),
        (lambda output, logits: logits[:2], r"shape \[2\], not \[3\]"),
        (lambda logits: logits, "TypeError"),
        (lambda output, logits: logits * float("nan"), "logits processor"),
    ],
)
def test_a_failing_processor_fails_its_row_alone(processor: Any, message: str) -> None:
    bench = Bench(vocab=3)
    bench.add(0, temperature=0)
    bench.add(1, temperature=0, logits_processors=[processor])
    result = bench.sample([1, 0], [[0, 1, 2], [0, 5, 2]])
    assert list(result.errors) == [1]
    assert re.search(message, result.errors[1].message)
    assert result.tokens[1] == 1


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
@pytest.mark.parametrize("vocab", [300, 40_000])  # the latter is summed by several threads
def test_a_line_gives_the_same_bits_alone_and_in_any_company(vocab: int, mode: str) -> None:
    logits = some_logits(len(MIXED), vocab, seed=5)
    logits[:, 1::2] = np.round(logits[:, 1::2])  # plenty of equal logits
    bench = Bench(vocab, num_rows=20, mode=mode)
    for row, sampling in enumerate(MIXED):
        bench.add(row, [3, 4, 5], [9, 2, 2], sampler_seed=row, **sampling)
    together = bench.sample(range(len(MIXED)), logits)
    shuffled = np.random.default_rng(0).permutation(len(MIXED))
    in_disorder = bench.sample(shuffled.tolist(), logits[shuffled])
    for row in range(len(MIXED)):
        alone = bench.sample([row], logits[row])
        line = int(np.flatnonzero(shuffled == row)[0])
        assert alone.tokens[0] == together.tokens[row] == in_disorder.tokens[line]
        if row in alone.logprobs:
            ours = alone.logprobs[row]
            for other in (together.logprobs[row], in_disorder.logprobs[row]):
                np.testing.assert_array_equal(ours.token_ids_np, other.token_ids_np)
                np.testing.assert_array_equal(ours.logprobs_np, other.logprobs_np)
                assert ours.rank == other.rank
    assert not together.errors


def test_a_row_given_to_another_request_forgets_the_first() -> None:
    bench, fresh = Bench(VOCAB, num_rows=2), Bench(VOCAB, num_rows=2)
    logits = some_logits(VOCAB, seed=9)
    for sampling in MIXED:
        if "allowed_token_ids" in sampling:
            sampling = sampling | {"allowed_token_ids": [1]}
        bench.add(0, [1, 2], [3], sampler_seed=1, **sampling)
        bench.sample([0], logits)
        bench.remove(0)
        bench.add(0, [1, 2], [3], sampler_seed=5)
        fresh.add(0, [1, 2], [3], sampler_seed=5)
        got, expected = bench.sample([0], logits), fresh.sample([0], logits)
        assert (got.tokens, got.logprobs) == (expected.tokens, {})
        bench.remove(0)


def test_lists_of_a_row_that_went_are_not_applied_to_its_successor() -> None:
    """Another row keeps the feature active, and the rows of the step stay the same."""
    lists = {"allowed_token_ids": [4], "logit_bias": {4: 100.0}, "bad_words_token_ids": [[1]], "temperature": 0}
    bench = Bench(VOCAB, num_rows=2)
    bench.add(0, **lists)
    bench.add(1, **lists)
    logits = np.tile(np.eye(VOCAB)[1], (2, 1))
    assert bench.sample([0, 1], logits).tokens == [4, 4]
    bench.remove(0)
    bench.add(0, temperature=0)
    assert bench.sample([0, 1], logits).tokens == [1, 4]
    bench.remove(1)
    bench.add(1, **(lists | {"allowed_token_ids": [5]}))
    assert bench.sample([0, 1], logits).tokens == [1, 5]
    bench.remove(0)
    bench.add(0, **(lists | {"allowed_token_ids": [6]}))
    assert bench.sample([0, 1], logits).tokens == [6, 5]


class Spy(TorchFunctionMode):
    """Notes what is launched."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ != "numel":  # read off the shape
            self.ops.append(func.__name__)
        return func(*args, **(kwargs or {}))


def launched(bench: Bench, rows: list[int]) -> list[str]:
    context, logits = bench.prepare(rows, some_logits(len(rows), bench.vocab))
    with Spy() as spy:
        bench.pipeline.sample(logits, context)
    return spy.ops


def test_every_step_is_listed_and_told_of_rows() -> None:
    """A class of this package that works on logits is in the pipeline; one that keeps rows hears of them."""
    modules = [
        importlib.import_module(f"cadence.sample.{found.name}") for found in pkgutil.iter_modules(sample.__path__)
    ]
    classes = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    made = {kind for kind in classes if hasattr(kind, "apply") and not getattr(kind, "_is_protocol", False)}
    pipeline = Bench(vocab=8).pipeline
    listed = list(pipeline._steps)
    assert made == {type(step) for step in listed}
    keeps_rows = [step for step in listed if hasattr(step, "add") or hasattr(step, "flush")]
    assert [step for step in keeps_rows if step not in pipeline.tables] == []


def test_a_feature_no_row_of_the_step_uses_launches_nothing() -> None:
    plain, busy = Bench(300, num_rows=20), Bench(300, num_rows=20)
    for bench in (plain, busy):
        bench.add(15, temperature=0)
        bench.add(16)
    for row, sampling in enumerate(MIXED):  # present, but not in the step
        busy.add(row, **sampling)
    greedy, random = launched(busy, [15]), launched(busy, [15, 16])
    assert greedy == launched(plain, [15])
    assert random == launched(plain, [15, 16])
    assert greedy == ["float", "max", "to"]  # of float32 logits the first does nothing
    assert not {"sort", "topk", "log_softmax", "div_"} & set(random)


def test_lists_are_uploaded_only_when_the_rows_change() -> None:
    bench = Bench(VOCAB)
    bench.add(0, allowed_token_ids=[1, 2], logit_bias={1: 1.0}, bad_words_token_ids=[[3]], temperature=0)
    bench.add(1, temperature=0)
    contexts = [bench.prepare(rows, some_logits(2, VOCAB)) for rows in ([0, 1], [0, 1], [1, 0])]
    uploads: list[int] = []
    upload, bench.device.upload = bench.device.upload, lambda array: (uploads.append(1), upload(array))[1]
    counts = []
    for context, logits in contexts:
        uploads.clear()
        bench.pipeline.sample(logits, context)
        counts.append(len(uploads))
    assert counts[0] > 0
    assert counts[1] == 0
    assert counts[2] > 0


class DoubleSeen:
    """Runs on the device: doubles the logit of every token the line holds already."""

    on_device = True

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(
        self, tokens: torch.Tensor, lengths: torch.Tensor, prompt_lens: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        self.calls.append(tuple(logits.shape))
        held = torch.arange(tokens.shape[1]) < lengths[:, None]
        counts = torch.zeros_like(logits).scatter_add_(1, (tokens * held).long(), held.float())
        return torch.where(counts > 0, logits * 2, logits)


def test_device_processors_see_all_their_lines_at_once() -> None:
    double = DoubleSeen()
    bench = Bench(vocab=4)
    bench.add(0, [1], [1], temperature=0, logits_processors=[double])
    bench.add(1, [2], [], temperature=0)
    bench.add(2, [3, 3], [], temperature=0, logits_processors=[double])
    lines = [[0, 4, 7, 6], [0, 4, 7, 6], [0, 4, 7, 6]]
    assert bench.sample([2, 1, 0], lines).tokens == [3, 2, 1]
    assert double.calls == [(2, 4)]


def test_a_device_processor_beside_a_host_processor_keeps_its_place() -> None:
    double = DoubleSeen()
    order: list[list[float]] = []

    def look(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        order.append(logits.tolist())
        return logits

    bench = Bench(vocab=4)
    bench.add(0, [1], [1], temperature=0, logits_processors=[look, double, look])
    assert bench.sample([0], [[0, 4, 7, 6]]).tokens == [1]
    assert order == [[0, 4, 7, 6], [0, 8, 7, 6]]


def test_a_failing_device_processor_fails_its_rows_alone() -> None:
    def fail(*_: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such thing")

    fail.on_device = True  # type: ignore[attr-defined]
    bench = Bench(vocab=3)
    bench.add(0, temperature=0)
    bench.add(1, temperature=0, logits_processors=[fail])
    result = bench.sample([1, 0], [[0, 1, 2], [0, 5, 2]])
    assert list(result.errors) == [1] and "KeyError" in result.errors[1].message
    assert result.tokens[1] == 1
