"""Models with an encoder beside a decoder, as a whole: the tokens of transformers, and the same in any company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.lora_request import LoRARequest
from cadence.core.sampling_params import BeamSearchParams
from cadence.core.structured_outputs import StructuredOutputsParams
from tests.helpers.adapters import save_adapter
from tests.helpers.tiny_seq2seq import FAMILIES, MELS, POSITIONS, SOUND, Seq2SeqOracle, make_seq2seq
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

BASE = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 200}
SOURCES = [[5, 6, 7, 8, 9, 1], [11, 12, 13, 1], [*range(20, 60), 1], [5, 6, 7, 8, 9, 1], [300, 301, 1]]
BEGINS = [[1], [1, 44, 45], [1], [1, *range(70, 100)], [1]]  # of the decoder, the first token as the files name it
PROMPTS = [{"encoder_prompt": source, "decoder_prompt": begins} for source, begins in zip(SOURCES, BEGINS, strict=True)]
PLAIN: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, "logprobs": 2}
GREEDY = SamplingParams(**PLAIN)
SEEDED = SamplingParams(**PLAIN | {"temperature": 0.8, "seed": 11})
FEATURES: list[dict[str, Any]] = [  # each of one request, beside the others
    {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "temperature": 0.9, "seed": 3},
    {"structured_outputs": StructuredOutputsParams(regex="(ab|cd){2,9}"), "ignore_eos": False},
    {"bad_words": ["a", "b"], "min_tokens": 4, "ignore_eos": False},
    {"logit_bias": {9: 5.0, 8: -3.0}, "top_k": 5, "temperature": 1.0, "seed": 4},
    {"prompt_logprobs": 1},
    {"skip_reading_prefix_cache": True, "stop_token_ids": [220]},
]
REQUESTS = [
    *((prompt, params) for params in (GREEDY, SEEDED) for prompt in PROMPTS),
    *((PROMPTS[number % len(PROMPTS)], SamplingParams(**PLAIN | given)) for number, given in enumerate(FEATURES, 3)),
]
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}

WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "chunks, no prefix cache": {"max_num_batched_tokens": 8, "enable_prefix_caching": False},
    "one content a step": {"max_num_encoder_tokens": 1},
    "bursts of 4, chunks, drafts": {
        "num_scheduler_steps": 4,
        "max_num_batched_tokens": 16,
        "speculative_config": DRAFTS,
    },
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
def alone(plain: LLM) -> Answers:
    return one_by_one(plain)


def one_by_one(llm: LLM) -> Answers:
    """Each request by itself, with an empty cache."""
    found: Answers = []
    for prompt, params in REQUESTS:
        llm.reset_prefix_cache()
        found += answers(llm.generate(prompt, params, use_tqdm=False))
    return found


def together(llm: LLM) -> Answers:
    llm.reset_prefix_cache()
    prompts, params = zip(*REQUESTS, strict=True)
    return answers(llm.generate(list(prompts), list(params), use_tqdm=False))


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


def check_parity(oracle: Seq2SeqOracle, content: Any, begins: list[int], answer: tuple[list[int], list[float]]) -> None:
    tokens, logprobs = answer
    lines = oracle.logprobs(content, [*begins, *tokens])[len(begins) - 1 : -1]
    assert tokens == lines.argmax(dim=-1).tolist()
    expected = lines[torch.arange(len(tokens)), torch.tensor(tokens)]
    torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-4, rtol=1e-4)


def test_greedy_tokens_and_logprobs_are_those_of_transformers(made: Made, alone: Answers) -> None:
    for answer, source, begins in zip(alone[: len(PROMPTS)], SOURCES, BEGINS, strict=True):
        check_parity(made[1], source, begins, answer)
    assert alone[1][0] == greedy_of(made[1], SOURCES[1], BEGINS[1], len(alone[1][0]))


@pytest.mark.parametrize("family", mostly_wide(FAMILIES[1:], ("t5", "whisper")))
def test_every_family_says_what_transformers_says(tmp_path: Path, family: str) -> None:
    directory = make_seq2seq(family, tmp_path)
    llm, oracle = LLM(model=str(directory), **BASE), Seq2SeqOracle(directory)
    contents: list[Any] = SOURCES
    given = [EncoderInput.of_tokens(source) for source in SOURCES]
    if family in SOUND:
        contents = list(np.random.default_rng(5).normal(size=(5, MELS, 2 * POSITIONS)).astype(np.float32))
        given = [EncoderInput.of_features(content, POSITIONS) for content in contents]
    prompts = [{"encoder_prompt": each, "decoder_prompt": begins} for each, begins in zip(given, BEGINS, strict=True)]
    together = answers(llm.generate(prompts, GREEDY, use_tqdm=False))
    for content, begins, answer in zip(contents, BEGINS, together, strict=True):
        check_parity(oracle, content, begins, answer)


@pytest.mark.parametrize("way", mostly_wide(WAYS, ("together", "tiny pool, depth 2", "drafts")))
def test_the_same_bits_alone_and_in_company(made: Made, alone: Answers, way: str) -> None:
    llm = LLM(model=str(made[0]), **BASE | WAYS[way])
    assert together(llm) == alone
    stats = llm.llm_engine._core.stats()
    assert stats.num_preemptions > 0 or "tiny pool" not in way
    assert stats.drafts.num_accepted > 0 or "drafts" not in way


@pytest.mark.parametrize("ranks", mostly_wide([2, 3], (2,)))
def test_ranks_give_the_same_bits_alone_and_in_company(made: Made, alone: Answers, ranks: int) -> None:
    """Their own: where a product's columns are shared (the last of attention, the last of the feed-forward block) its
    sum over ranks is rounded otherwise than one rank's."""
    llm = LLM(model=str(made[0]), **BASE, tensor_parallel_size=ranks)
    own = one_by_one(llm)
    assert together(llm) == own
    for (tokens, logprobs), (expected, exact) in zip(own, alone, strict=True):
        assert tokens == expected and logprobs == pytest.approx(exact, abs=1e-4)


def test_a_plain_prompt_is_what_the_encoder_reads(plain: LLM, alone: Answers) -> None:
    (output,) = plain.generate(SOURCES[:1], GREEDY, use_tqdm=False)
    assert answers([output]) == alone[:1]
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


def test_what_needs_a_decoder_alone_is_refused(made: Made, plain: LLM) -> None:
    for options in ({"runner": "pooling"}, {"convert": "embed"}, {"task": "score"}):
        with pytest.raises(ConfigError, match="BartForConditionalGeneration has an encoder, and gives texts"):
            LLM(str(made[0]), **BASE, **options)
    with pytest.raises(InvalidRequestError, match="cannot embed: it generates text"):
        plain.embed(SOURCES[:1], use_tqdm=False)


@pytest.mark.parametrize("form", mostly_wide(["int8", "int4"], ("int8",)))
def test_quantised_weights_give_the_same_bits_in_any_company(made: Made, plain: LLM, form: str) -> None:
    llm = LLM(model=str(made[0]), quantization=form, **BASE)
    together = answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False))
    for prompt, expected in zip(PROMPTS, together, strict=True):
        llm.reset_prefix_cache()
        assert answers(llm.generate(prompt, GREEDY, use_tqdm=False)) == [expected]
    near = answers(plain.generate(PROMPTS, GREEDY, use_tqdm=False))
    assert together != near, "weights of few bits give other numbers"
    for (_, found), (_, exact) in zip(together, near, strict=True):
        assert found[0] == pytest.approx(exact[0], abs=0.5 if form == "int8" else 3.0)


def test_rows_with_adapters_are_what_they_are_alone(made: Made, alone: Answers, tmp_path: Path) -> None:
    """One on both sides of the model, beside rows without."""
    trained = {"r": 4, "target_modules": ["q_proj", "v_proj", "fc1"], "task_type": "SEQ_2_SEQ_LM"}
    save_adapter(Seq2SeqOracle(made[0]).model, tmp_path, seed=1, lora_alpha=16, **trained)
    llm = LLM(model=str(made[0]), enable_lora=True, max_lora_rank=8, **BASE)
    given = [LoRARequest("one", 1, str(tmp_path)) if number % 2 else None for number in range(len(PROMPTS))]
    together = answers(llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=given))
    for number, (prompt, lora) in enumerate(zip(PROMPTS, given, strict=True)):
        llm.reset_prefix_cache()
        assert answers(llm.generate(prompt, GREEDY, use_tqdm=False, lora_request=lora)) == [together[number]]
        assert (together[number] == alone[number]) == (lora is None)


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
