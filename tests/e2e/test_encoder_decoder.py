"""Models with an encoder beside a decoder, as a whole: the tokens of transformers, and the same in any company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.sampling_params import BeamSearchParams
from cadence.core.structured_outputs import StructuredOutputsParams
from tests.helpers.tiny_seq2seq import Seq2SeqOracle, make_seq2seq
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine]

BASE = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 200}
SOURCES = [[5, 6, 7, 8, 9, 1], [11, 12, 13, 1], [*range(20, 60), 1], [5, 6, 7, 8, 9, 1], [300, 301, 1]]
BEGINS = [[1], [1, 44, 45], [1], [1, *range(70, 100)], [1]]  # of the decoder, the first token as the files name it
PROMPTS = [{"encoder_prompt": source, "decoder_prompt": begins} for source, begins in zip(SOURCES, BEGINS, strict=True)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=2)
SEEDED = SamplingParams(temperature=0.8, seed=11, max_tokens=20, ignore_eos=True, logprobs=2)
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}

WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "chunks, no prefix cache": {"max_num_batched_tokens": 8, "enable_prefix_caching": False},
    "one content a step": {"max_num_encoder_tokens": 1},
    "one by one, no bursts": {"max_num_seqs": 1, "num_scheduler_steps": 1},
    "tiny pool, depth 2": {"num_gpu_blocks_override": 18, "max_model_len": 64, "async_scheduling": True},
    "drafts": {"speculative_config": DRAFTS},
}


Made = tuple[Path, Seq2SeqOracle]
Answers = list[tuple[list[int], list[float]]]  # tokens and their logprobs, by request


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = make_seq2seq("bart", tmp_path_factory.mktemp("seq2seq"))
    return directory, Seq2SeqOracle(directory)


@pytest.fixture(scope="module")
def plain(made: Made) -> LLM:
    return LLM(model=str(made[0]), **BASE)


@pytest.fixture(scope="module")
def alone(plain: LLM) -> tuple[Answers, Answers]:
    """Each request by itself, with an empty cache: greedy, and seeded."""
    found: tuple[Answers, Answers] = ([], [])
    for params, answered in zip((GREEDY, SEEDED), found, strict=True):
        for prompt in PROMPTS:
            plain.reset_prefix_cache()
            answered += answers(plain.generate(prompt, params, use_tqdm=False))
    return found


def greedy_of(oracle: Seq2SeqOracle, source: list[int], begins: list[int], count: int) -> list[int]:
    given = {"decoder_input_ids": torch.tensor([begins]), "do_sample": False, "num_beams": 1}
    found = oracle.model.generate(torch.tensor([source]), max_new_tokens=count, min_new_tokens=count, **given)
    return found[0, len(begins) :].tolist()


def answers(outputs: Sequence[RequestOutput]) -> Answers:
    found = []
    for output in outputs:
        (completion,) = output.outputs
        assert completion.logprobs is not None
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        found.append((list(completion.token_ids), [position[token].logprob for token, position in pairs]))
    return found


def test_greedy_tokens_and_logprobs_are_those_of_transformers(made: Made, alone: tuple[Answers, Answers]) -> None:
    for (tokens, logprobs), source, begins in zip(alone[0], SOURCES, BEGINS, strict=True):
        assert tokens == greedy_of(made[1], source, begins, len(tokens))
        lines = made[1].logprobs(source, [*begins, *tokens])[len(begins) - 1 : -1]
        expected = lines[torch.arange(len(tokens)), torch.tensor(tokens)]
        torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("way", mostly_wide(WAYS, ("together", "tiny pool, depth 2", "drafts")))
def test_the_same_bits_alone_and_in_company(made: Made, alone: tuple[Answers, Answers], way: str) -> None:
    llm = LLM(model=str(made[0]), **BASE | WAYS[way])
    for params, expected in zip((GREEDY, SEEDED), alone, strict=True):  # from a cold cache, and from a warm one
        assert answers(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
    if "tiny pool" in way:
        assert llm.llm_engine._core.stats().num_preemptions > 0


def test_a_plain_prompt_is_what_the_encoder_reads(plain: LLM, alone: tuple[Answers, Answers]) -> None:
    (output,) = plain.generate(SOURCES[:1], GREEDY, use_tqdm=False)
    assert answers([output]) == alone[0][:1]
    assert (output.encoder_prompt_token_ids, output.prompt_token_ids) == (SOURCES[0], [1])
    text = plain.get_tokenizer().decode([5, 6, 7])
    (said,) = plain.generate([text], GREEDY, use_tqdm=False)
    assert said.encoder_prompt_token_ids == plain.get_tokenizer().encode(text) and said.prompt == text


def test_several_completions_of_one_content_are_those_of_as_many_requests(plain: LLM) -> None:
    (several,) = plain.generate(PROMPTS[2], replace_n(SEEDED, 3), use_tqdm=False)
    for number, completion in enumerate(several.outputs):
        params = SEEDED.clone()
        params.seed = 11 + number
        (one,) = plain.generate(PROMPTS[2], params, use_tqdm=False)
        assert completion.token_ids == one.outputs[0].token_ids


def replace_n(params: SamplingParams, n: int) -> SamplingParams:
    changed = params.clone()
    changed.n = n
    return changed


def test_beams_are_those_of_transformers(made: Made, plain: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True, length_penalty=0.0)
    for source, found in zip(SOURCES[:3], plain.beam_search(SOURCES[:3], params), strict=True):
        expected = made[1].model.generate(
            torch.tensor([source]),
            num_beams=3,
            num_return_sequences=3,
            max_new_tokens=8,
            min_new_tokens=8,
            length_penalty=0.0,
            do_sample=False,
        )
        assert [beam.tokens for beam in found.sequences] == expected.tolist()


def test_an_output_can_be_held_to_a_grammar(plain: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="(ab|cd)e"))
    for output in plain.generate(PROMPTS, params, use_tqdm=False):
        assert output.outputs[0].text in ("abe", "cde")


@pytest.mark.parametrize("dtype", mostly_wide(["bfloat16", "int8", "fp8_e4m3", "int4"], ("int8",)))
def test_keys_of_few_bits_give_the_same_bits_in_any_company(made: Made, dtype: str) -> None:
    llm = LLM(model=str(made[0]), kv_cache_dtype=dtype, **BASE)
    together = answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    for prompt, expected in zip(PROMPTS, together, strict=True):
        llm.reset_prefix_cache()
        assert answers(llm.generate(prompt, GREEDY, use_tqdm=False)) == [expected]


def test_prompt_logprobs_are_those_of_the_decoders_prompt(made: Made, plain: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    (output,) = plain.generate(PROMPTS[3], params, use_tqdm=False)
    lines = made[1].logprobs(SOURCES[3], BEGINS[3])
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(BEGINS[3])
    for place, token in enumerate(BEGINS[3][1:], 1):
        position = output.prompt_logprobs[place]
        assert position is not None and position[token].logprob == pytest.approx(
            lines[place - 1, token].item(), abs=1e-4
        )
