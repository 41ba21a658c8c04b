"""Rules of transcripts: what transformers' processors for Whisper leave."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from cadence.core.contract.codec import decode_request, encode_request
from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import SamplingParams
from cadence.core.speech_rules import SpeechRules
from tests.helpers.sample_bench import Bench
from tests.helpers.toy_model import make_request
from tests.helpers.wide import examples

END, NO_TIMES, FIRST, VOCAB = 20, 24, 25, 41
RULES = SpeechRules(
    first_timestamp=FIRST,
    no_timestamps=NO_TIMES,
    end_of_text=END,
    max_initial=3,
    suppressed=(1, 5, 22),
    suppressed_first=(2, END),
)
PROMPT = [21, 30, 23]  # with a token like a time in it, as the text before has


def oracle(rules: SpeechRules, output: list[int], logits_np: np.ndarray) -> np.ndarray:
    ids = torch.tensor([[*PROMPT, *output]])
    scores = torch.from_numpy(logits_np)[None]
    scores = SuppressTokensAtBeginLogitsProcessor(list(rules.suppressed_first), len(PROMPT))(ids, scores)
    scores = SuppressTokensLogitsProcessor(list(rules.suppressed))(ids, scores)
    if rules.timestamps:
        config = SimpleNamespace(no_timestamps_token_id=NO_TIMES, eos_token_id=END, bos_token_id=END)
        config.max_initial_timestamp_index = rules.max_initial if rules.max_initial >= 0 else None
        scores = WhisperTimeStampLogitsProcessor(config, len(PROMPT))(ids, scores)
    return scores[0].softmax(-1).numpy()


text = st.integers(0, END - 1)
time = st.integers(FIRST, VOCAB - 1)


OUTPUTS = ([], [FIRST], [3], [FIRST, FIRST + 2], [FIRST, 3], [FIRST, 3, FIRST + 2], [FIRST, 3, FIRST + 2, FIRST + 2])


@examples(60, 500)
@given(
    output=st.one_of(st.sampled_from(OUTPUTS), st.lists(st.one_of(text, time), max_size=8)),
    seed=st.integers(0, 2**16),
    spread=st.sampled_from([0.1, 1.0, 4.0]),
    rules=st.sampled_from(
        [RULES, dataclasses.replace(RULES, max_initial=-1), SpeechRules(suppressed=(4,), suppressed_first=(0,))]
    ),
)
def test_tokens_and_probabilities_of_transformers(
    output: list[int], seed: int, spread: float, rules: SpeechRules
) -> None:
    logits_np = (np.random.default_rng(seed).standard_normal(VOCAB) * spread).astype(np.float32)
    expected_np = oracle(rules, output, logits_np)
    bench = Bench(VOCAB, mode="processed_logprobs")
    bench.add(0, PROMPT, output, logprobs=-1, speech_rules=rules)
    bench.add(1, PROMPT, [7], logprobs=-1)  # a row without rules, beside it
    sampled = bench.sample([1, 0], np.stack([logits_np, logits_np]))
    found_np, other_np = (_probabilities(sampled.logprobs[row]) for row in (0, 1))
    if np.isnan(expected_np).any():
        assert 0 in sampled.errors  # nothing is left: a history that no transcript can have
        return
    np.testing.assert_allclose(found_np, expected_np, atol=1e-6)
    np.testing.assert_allclose(other_np, torch.from_numpy(logits_np).softmax(-1).numpy(), atol=1e-6)


def _probabilities(logprobs: Any) -> np.ndarray:
    found_np = np.zeros(VOCAB)
    found_np[logprobs.token_ids_np[1:]] = np.exp(logprobs.logprobs_np[1:])
    return found_np


def test_times_win_only_together() -> None:
    """Each of ten times is less likely than the best text token, their sum is more likely."""
    logits_np = np.full(VOCAB, -10.0, np.float32)
    logits_np[3], logits_np[FIRST + 4 : FIRST + 14] = 1.0, 0.0
    bench = Bench(VOCAB)
    bench.add(0, PROMPT, [FIRST, 6], temperature=0, speech_rules=RULES)
    assert bench.sample([0], logits_np).tokens == [FIRST + 4]
    logits_np[FIRST + 4 : FIRST + 14] = -2.0
    assert bench.sample([0], logits_np).tokens == [3]


def test_rules_are_checked_and_travel() -> None:
    given = dataclasses.asdict(RULES)
    assert SamplingParams(speech_rules=given).speech_rules == RULES
    request = make_request("r", [1], params=SamplingParams(speech_rules=RULES))
    assert decode_request(encode_request(request)) == request
    with pytest.raises(InvalidRequestError, match="end_of_text"):
        SpeechRules(first_timestamp=5, end_of_text=6)
    with pytest.raises(InvalidRequestError, match="speech_rules"):
        SamplingParams(speech_rules={"unknown": 1})
    with pytest.raises(InvalidRequestError, match="speech_rules"):
        SamplingParams(speech_rules=RULES).verify(FIRST, 5, 100)
