"""Drafts by a model with an encoder change no bit of what its target writes; with the target itself every greedy draft
is right, so the draft model reads the same content, wherever its keys were; and an encoder that both have is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence import LLM, SamplingParams
from cadence.core.errors import ConfigError
from cadence.core.inputs.encoder_input import EncoderInput
from tests.e2e.test_encoder_decoder import (
    BASE,
    BEGINS,
    GREEDY,
    Answers,
    Made,
    alone,  # noqa: F401 - a fixture
    answers,
    made,  # noqa: F401 - a fixture
    plain,  # noqa: F401 - a fixture
    together,
)
from tests.helpers.tiny_models import make_tiny
from tests.helpers.tiny_seq2seq import MELS, POSITIONS, make_seq2seq
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine]

OTHER = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 24, "decoder_attention_heads": 2}  # another encoder, too
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "bursts of 4, chunks": {"num_scheduler_steps": 4, "max_num_batched_tokens": 24},
    "tiny pool, depth 2": {"num_gpu_blocks_override": 18, "max_model_len": 64, "async_scheduling": True},
    "two ranks": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
    "int8 weights and keys": {"quantization": "int8", "kv_cache_dtype": "int8"},
}


def drafts_by(directory: Path) -> dict[str, Any]:
    return {"speculative_config": {"model": str(directory), "num_speculative_tokens": 3, "adaptive": False}}


@pytest.mark.parametrize("way", mostly_wide(WAYS, ("bursts of 4, chunks", "tiny pool, depth 2")))
def test_drafts_by_a_smaller_model_change_no_bit(
    made: Made,  # noqa: F811
    alone: Answers,  # noqa: F811
    tmp_path: Path,
    way: str,
) -> None:
    options = BASE | WAYS[way]
    llm = LLM(str(made[0]), **options, **drafts_by(make_seq2seq("bart", tmp_path, **OTHER)))
    found = together(llm)
    assert together(llm) == found, "from the caches of both models"
    of_itself = way in ("two ranks", "int8 weights and keys")
    assert found == (together(LLM(str(made[0]), **options)) if of_itself else alone)
    stats = llm.llm_engine._core.stats()
    assert stats.drafts.num_drafted > 100
    assert stats.num_preemptions > 0 or "tiny pool" not in way


@pytest.mark.parametrize("way", mostly_wide(WAYS, ("together",)))
def test_every_draft_of_the_target_itself_is_right(made: Made, way: str) -> None:  # noqa: F811
    llm = LLM(str(made[0]), **BASE | WAYS[way], **drafts_by(made[0]))
    found = together(llm)
    assert together(llm) == found
    stats = llm.llm_engine._core.stats().drafts
    assert stats.num_accepted > 0.6 * stats.num_drafted, "most requests are greedy, and end in the middle of a run"


def encoders(llm: LLM) -> tuple[Any, Any]:
    """The target's, and the draft model's."""
    ours, theirs = llm.llm_engine._core._executor._runner._parts.features["encoder"]._readers
    return ours.model.encoder, theirs.model.encoder


def test_sound_is_heard_once_where_both_have_one_encoder(tmp_path: Path) -> None:
    target, other = make_seq2seq("whisper", tmp_path / "a"), make_seq2seq("whisper", tmp_path / "b", encoder_layers=1)
    sounds = list(np.random.default_rng(5).normal(size=(3, MELS, 2 * POSITIONS)).astype(np.float32))
    given = [EncoderInput.of_features(sound, POSITIONS) for sound in sounds]
    prompts = [
        {"encoder_prompt": sound, "decoder_prompt": begins} for sound, begins in zip(given, BEGINS, strict=False)
    ]

    def said(**options: Any) -> tuple[LLM, Answers]:
        llm = LLM(str(target), **BASE, **options)
        return llm, answers(llm.generate(prompts, GREEDY, use_tqdm=False))

    _, expected = said()
    for draft in (target, other):
        llm, found = said(**drafts_by(draft))
        assert found == expected
        ours, theirs = encoders(llm)
        assert (ours is theirs) == (draft == target)
        stats = llm.llm_engine._core.stats().drafts
        assert draft == other or stats.num_accepted > 0.8 * stats.num_drafted


def test_models_that_cannot_draft_for_each_other_are_refused(made: Made, tmp_path: Path) -> None:  # noqa: F811
    bart, llama = str(made[0]), str(make_tiny("llama", tmp_path / "llama"))
    whisper = str(make_seq2seq("whisper", tmp_path / "whisper"))
    short = str(make_seq2seq("bart", tmp_path / "short", max_position_embeddings=64))
    for model, draft, why in (
        (llama, bart, "BartForConditionalGeneration has an encoder and LlamaForCausalLM none"),
        (bart, llama, "BartForConditionalGeneration has an encoder and LlamaForCausalLM none"),
        (bart, whisper, f"its encoder reads {MELS} mel bins, the target's texts"),
        (bart, short, "its encoder reads 64 positions, the target's 128"),
    ):
        with pytest.raises(ConfigError, match=why):
            LLM(model, **BASE, speculative_config={"model": draft, "num_speculative_tokens": 2})
    with pytest.raises(ConfigError, match="a model that has one drafts for it, or method ngram or suffix"):
        LLM(bart, **BASE, speculative_config={"method": "eagle", "model": llama, "num_speculative_tokens": 2})


def test_a_request_may_have_no_drafts(made: Made, alone: Answers) -> None:  # noqa: F811
    llm = LLM(str(made[0]), **BASE, **drafts_by(made[0]))
    (output,) = llm.generate([{"encoder_prompt": [5, 6, 7, 8, 9, 1], "decoder_prompt": [1]}], GREEDY, use_tqdm=False)
    assert answers([output]) == alone[:1]
    params = SamplingParams(temperature=0.0, max_tokens=3, speculative={"num_tokens": 0})
    llm.generate([[5, 6, 7]], params, use_tqdm=False)
