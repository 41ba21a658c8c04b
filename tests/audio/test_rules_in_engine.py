"""Whisper's rules in a whole engine: the tokens that transformers' model and processors choose."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from cadence import LLM, SamplingParams
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.speech_rules import SpeechRules
from tests.helpers.tiny_seq2seq import MELS, POSITIONS, Seq2SeqOracle, make_seq2seq

pytestmark = pytest.mark.engine

END, NO_TIMES, FIRST = 100, 119, 120
RULES = SpeechRules(
    first_timestamp=FIRST,
    no_timestamps=NO_TIMES,
    end_of_text=END,
    max_initial=40,
    suppressed=(5, 9, *range(END, NO_TIMES)),
    suppressed_first=(7,),
)
PROMPT = [1, 3, 130, 4]  # with a time in the text before
COUNT = 24


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokens are made so alike that it does not say the newest one again."""
    directory = make_seq2seq("whisper", tmp_path_factory.mktemp("whisper"))
    model = WhisperForConditionalGeneration.from_pretrained(directory)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight.mul_(0.05)
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def contents() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.standard_normal((MELS, 2 * POSITIONS)).astype(np.float32) for _ in range(3)]


def oracle(model: Seq2SeqOracle, features_np: np.ndarray) -> list[int]:
    config = SimpleNamespace(
        no_timestamps_token_id=NO_TIMES,
        eos_token_id=END,
        bos_token_id=END,
        max_initial_timestamp_index=RULES.max_initial,
    )
    processors = (
        SuppressTokensAtBeginLogitsProcessor(list(RULES.suppressed_first), len(PROMPT)),
        SuppressTokensLogitsProcessor(list(RULES.suppressed)),
        WhisperTimeStampLogitsProcessor(config, len(PROMPT)),
    )
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + COUNT and tokens[-1] != END:
        scores = model.logprobs(features_np, tokens)[-1:]
        for process in processors:
            scores = process(torch.tensor([tokens]), scores)
        tokens.append(int(scores.argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize(
    "options",
    [{}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}}],
    ids=["plain", "drafts"],
)
def test_tokens_of_transformers_processors(
    directory: Path, contents: list[np.ndarray], options: dict[str, Any]
) -> None:
    model = Seq2SeqOracle(directory)
    expected = [oracle(model, features_np) for features_np in contents]
    assert any(token >= FIRST for tokens in expected for token in tokens[1:])
    assert any(token < END for tokens in expected for token in tokens)
    llm = LLM(str(directory), dtype="float32", max_num_seqs=4, max_model_len=64, **options)
    sampling = SamplingParams(
        temperature=0, max_tokens=COUNT, stop_token_ids=[END], ignore_eos=True, detokenize=False, speech_rules=RULES
    )
    prompts = [
        {"encoder_prompt": EncoderInput.of_features(each_np, POSITIONS), "decoder_prompt": PROMPT}
        for each_np in contents
    ]
    found = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]
    assert found == expected
    free = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert all(list(output.outputs[0].token_ids) != tokens[:4] for output, tokens in zip(free, expected, strict=True))
