"""When the tokens of a text are said, as a whole engine finds it: the times of transformers, and the same values in
any company."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.audio.alignment import token_times
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.core.inputs.encoder_input import EncoderInput
from tests.helpers.tiny_seq2seq import MELS, POSITIONS, Seq2SeqOracle, make_seq2seq
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

BASE = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 200, "max_model_len": 100}
HEADS = ((1, 3), (0, 1), (1, 0))  # of two layers with four heads each
START = [1, 3, 4, 2]  # what stands before the text
RANDOM = np.random.default_rng(3)
SOUNDS = [RANDOM.standard_normal((MELS, 2 * POSITIONS)).astype(np.float32) for _ in range(3)]
TEXTS = [RANDOM.integers(5, 320, count).tolist() for count in (11, 40, 1)]
SPECS = [AlignmentSpec(3, positions, HEADS) for positions in (POSITIONS, 100, 37)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)

WAYS: dict[str, dict[str, Any]] = {
    "chunks, no prefix cache": {"max_num_batched_tokens": 8, "enable_prefix_caching": False},
    "bursts, drafts": {
        "num_scheduler_steps": 4,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1},
    },
    "two stages, chunks": {"pipeline_parallel_size": 2, "max_num_batched_tokens": 16},
    "tiny pool, depth 2": {"num_gpu_blocks_override": 34, "async_scheduling": True, "max_num_batched_tokens": 16},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seq2seq("whisper", tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def plain(directory: Path) -> LLM:
    return LLM(str(directory), **BASE)


@pytest.fixture(scope="module")
def alone(plain: LLM) -> list[np.ndarray]:
    return [matrices(plain, [number])[0] for number in range(len(TEXTS))]


def prompt(number: int) -> dict[str, Any]:
    content = EncoderInput.of_features(SOUNDS[number], POSITIONS)
    return {"encoder_prompt": content, "decoder_prompt": [*START, *TEXTS[number]]}


def matrices(llm: LLM, numbers: list[int], others: int = 0) -> list[np.ndarray]:
    """others: requests for text beside these, before and after each"""
    engine, found = llm.llm_engine, dict[str, np.ndarray]()
    for place, number in enumerate(numbers):
        for other in range(others):
            engine.add_request(f"text-{place}-{other}", {**prompt(other % 3), "decoder_prompt": [1]}, GREEDY)
        engine.add_request(f"align-{place}", prompt(number), SPECS[number])
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.pooled_np is not None:
                found[output.request_id] = output.pooled_np
    return [found[f"align-{place}"] for place in range(len(numbers))]


def times_of_transformers(oracle: Seq2SeqOracle, number: int) -> np.ndarray:
    """By its own function, of the attention that its own model has."""
    spec, model = SPECS[number], oracle.model
    with torch.no_grad():
        output = model(
            input_features=torch.from_numpy(SOUNDS[number])[None],
            decoder_input_ids=torch.tensor([[*START, *TEXTS[number]]]),
            output_attentions=True,
        )
    given = SimpleNamespace(cross_attentions=[output.cross_attentions], sequences=torch.zeros(1, 1))
    given = type("Outputs", (dict,), {"__getattr__": dict.__getitem__})(vars(given))
    times = model._extract_token_timestamps(
        given, [list(head) for head in HEADS], num_frames=2 * spec.positions, num_input_ids=spec.first
    )
    return times[0, spec.first : -1].numpy()


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_tokens_are_said_when_transformers_says(directory: Path, alone: list[np.ndarray], number: int) -> None:
    matrix_np = alone[number]
    assert matrix_np.shape == (len(TEXTS[number]) + 1, SPECS[number].positions)
    expected_np = times_of_transformers(Seq2SeqOracle(directory), number)
    np.testing.assert_allclose(token_times(matrix_np), expected_np, atol=1e-6)
    assert len(set(expected_np.tolist())) > 1 or number == 2


@pytest.mark.parametrize(
    "way", mostly_wide(WAYS, ("chunks, no prefix cache", "two stages, chunks", "tiny pool, depth 2"))
)
def test_the_same_values_in_any_company(directory: Path, alone: list[np.ndarray], way: str) -> None:
    llm = LLM(str(directory), **BASE | WAYS[way])
    numbers = [0, 1, 2, 1]
    for found_np, number in zip(matrices(llm, numbers, others=3), numbers, strict=True):
        np.testing.assert_array_equal(found_np, alone[number])
    assert llm.llm_engine._core.stats().num_preemptions > 0 or "tiny pool" not in way


@pytest.mark.parametrize("ranks", mostly_wide([2, 3], (2,)))
def test_ranks_give_the_same_values_in_any_company(directory: Path, alone: list[np.ndarray], ranks: int) -> None:
    """Their own: what ranks add up is rounded otherwise than in one process."""
    llm = LLM(str(directory), **BASE, tensor_parallel_size=ranks)
    own, numbers = [matrices(llm, [number])[0] for number in range(len(TEXTS))], [0, 1, 2, 1]
    for found_np, number in zip(matrices(llm, numbers, others=3), numbers, strict=True):
        np.testing.assert_array_equal(found_np, own[number])
        np.testing.assert_allclose(found_np, alone[number], rtol=0.0, atol=1e-4)


def test_text_beside_it_is_what_it_is_alone(plain: LLM) -> None:
    (alone,) = plain.generate({**prompt(0), "decoder_prompt": [1]}, GREEDY, use_tqdm=False)
    engine = plain.llm_engine
    engine.add_request("text", {**prompt(0), "decoder_prompt": [1]}, GREEDY)
    engine.step()
    engine.add_request("align", prompt(1), SPECS[1])
    found = []
    while engine.has_unfinished_requests():
        found += [output for output in engine.step() if output.request_id == "text"]
    assert found[-1].outputs[0].token_ids == alone.outputs[0].token_ids


@pytest.mark.parametrize("dtype", mostly_wide(["int8", "fp8_e4m3", "int4"], ("int8",)))
def test_keys_of_few_bits_are_read(directory: Path, alone: list[np.ndarray], dtype: str) -> None:
    (matrix_np,) = matrices(LLM(str(directory), kv_cache_dtype=dtype, **BASE), [1])
    assert np.corrcoef(matrix_np.ravel(), alone[1].ravel())[0, 1] > 0.8


def test_what_cannot_be_aligned_is_refused(plain: LLM, tmp_path: Path) -> None:
    add = plain.llm_engine.add_request
    for spec in (AlignmentSpec(99, 1, HEADS), AlignmentSpec(0, POSITIONS + 1, HEADS), AlignmentSpec(0, 1, ())):
        with pytest.raises(InvalidRequestError):
            add("wrong", prompt(0), spec)
    assert not plain.llm_engine.has_unfinished_requests()
