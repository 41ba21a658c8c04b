"""What a prompt and its parameters become: token ids, a stop rule, a seed; or one error that names the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cadence.core.errors import ContextLengthError, InvalidRequestError
from cadence.core.grammar import GrammarSpec
from cadence.core.sampling_params import BeamSearchParams, SamplingParams
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.engine.text.beam import BeamSearch
from cadence.engine.text.input_limits import InputLimits
from cadence.engine.text.input_processor import InputProcessor, weight_of
from cadence.engine.text.prompts import ParsedPrompt, pinned, tokenised
from cadence.text.null_tokenizer import NullTokenizer
from cadence.text.tokenizer import Tokenizer

EOS = frozenset({2})
LIMITS = InputLimits(vocab_size=512, max_model_len=32, max_logprobs=5, seed=7, eos_token_ids=EOS)


@pytest.fixture
def inputs(tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(LIMITS, tokenizer)


def test_every_shape_of_a_prompt(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the dog")
    shapes: list[tuple[Any, str | None, str]] = [
        ("the dog", "the dog", ""),
        ({"prompt": "the dog", "cache_salt": "s"}, "the dog", "s"),
        (ids, None, ""),
        ({"prompt_token_ids": ids}, None, ""),
        ({"prompt_token_ids": ids, "prompt": "as it was"}, "as it was", ""),
    ]
    for prompt, text, salt in shapes:
        found = inputs.process("r", prompt, SamplingParams())
        assert (found.request.prompt_token_ids, found.prompt_text, found.request.cache_salt) == (ids, text, salt)


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ([], "prompt"),
        ([1, 512], "prompt"),
        ([-1], "prompt"),
        ([1, "2"], "prompt"),
        ({"prompt": 3}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "images": []}, "images"),
        (3.5, "prompt"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_named(inputs: InputProcessor, prompt: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs.process("r", prompt, SamplingParams())
    assert caught.value.field == field


def test_the_rank_of_an_engine_is_one_that_there_is(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    def rank_of(inputs: InputProcessor, rank: Any) -> int | None:
        prompt = {"prompt_token_ids": [1], "data_parallel_rank": rank}
        return inputs.process("r", prompt, SamplingParams()).engine

    of_three = InputProcessor(replace(LIMITS, num_engines=3), tokenizer)
    assert [rank_of(of_three, rank) for rank in (None, 0, 2)] == [None, 0, 2] and rank_of(inputs, 0) == 0
    for wrong in (3, -1, "1", 1.0, True):
        with pytest.raises(InvalidRequestError, match="data_parallel_rank must be an integer from 0 to 2") as caught:
            rank_of(of_three, wrong)
        assert caught.value.field == "data_parallel_rank"
    with pytest.raises(InvalidRequestError, match="must be 0: there is one engine; got 1"):
        rank_of(inputs, 1)


def test_a_prompt_keeps_its_engine_when_it_is_cut_or_tokenised(tokenizer: Tokenizer) -> None:
    prompt = tokenised(pinned({"prompt": "the dog", "cache_salt": "s"}, 1), tokenizer, {"truncate_prompt_tokens": 1})
    assert isinstance(prompt, ParsedPrompt)
    assert (prompt.data_parallel_rank, prompt.cache_salt, prompt.token_ids) == (
        1,
        "s",
        tokenizer.encode("the dog")[-1:],
    )
    assert pinned("the dog", None) == "the dog"


def test_a_prompt_leaves_room_for_a_token(inputs: InputProcessor) -> None:
    inputs.process("r", [1] * 31, SamplingParams())
    with pytest.raises(ContextLengthError):
        inputs.process("r", [1] * 32, SamplingParams())


@pytest.mark.parametrize(("asked", "given"), [(None, 22), (5, 5), (100, 22)])
def test_max_tokens_ends_at_the_context(inputs: InputProcessor, asked: int | None, given: int) -> None:
    request = inputs.process("r", [1] * 10, SamplingParams(max_tokens=asked)).request
    assert request.stop.max_tokens == given


def test_the_stop_rule(inputs: InputProcessor) -> None:
    rule = inputs.process("r", [1], SamplingParams(stop_token_ids=[9], min_tokens=2)).request.stop
    assert (rule.eos_token_ids, rule.stop_token_ids, rule.min_tokens) == (EOS, frozenset({9}), 2)
    assert not inputs.process("r", [1], SamplingParams(ignore_eos=True)).request.stop.eos_token_ids


def test_seeds_are_the_users_or_follow_from_the_engines(tokenizer: Tokenizer) -> None:
    def seeds(limits: InputLimits = LIMITS, **params: Any) -> list[int]:
        inputs = InputProcessor(limits, tokenizer)
        return [inputs.process("r", [1], SamplingParams(**params)).request.seed for _ in range(3)]

    assert seeds(seed=11) == [11, 11, 11] and seeds(seed=-2) == [2**64 - 2] * 3
    drawn = seeds()
    assert drawn == seeds() and len(set(drawn)) == 3
    other = InputLimits(vocab_size=512, max_model_len=32, max_logprobs=5, seed=8, eos_token_ids=EOS)
    assert not set(drawn) & set(seeds(other))


def test_the_callers_parameters_are_not_touched(inputs: InputProcessor) -> None:
    params = SamplingParams(bad_words=["dog"], logprobs=3)
    request = inputs.process("r", [1], params).request
    assert request.params.bad_words_token_ids and params.bad_words_token_ids is None
    assert request.params is not params


def test_bad_words_are_spelled_at_the_start_and_after_a_space(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    """The second only where it has as many tokens as the first."""
    a, spaced_a, the = (tokenizer.encode(text, add_special_tokens=False) for text in ("a", " a", "the"))
    assert len(a) == len(spaced_a) and len(the) > len(tokenizer.encode(" the", add_special_tokens=False))
    request = inputs.process("r", [1], SamplingParams(bad_words=["a", "the"])).request
    assert request.params.bad_words_token_ids == [a, spaced_a, the]


def test_logprobs_are_capped_by_the_engine_unless_it_asks_itself(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequestError, match="logprobs"):
        inputs.process("r", [1], SamplingParams(logprobs=6))
    found = inputs.process("r", [1], SamplingParams(logprobs=600), cap_logprobs=False)
    assert found.request.params.logprobs == LIMITS.vocab_size


def test_a_thinking_budget_needs_marks_of_one_token(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    """The tokenizer has no <think>; a request that names its marks needs none."""
    with pytest.raises(InvalidRequestError) as caught:
        inputs.process("r", [1], SamplingParams(thinking_token_budget=4))
    assert caught.value.field == "thinking_token_budget"
    marked = SamplingParams(thinking_token_budget=4, thinking_token_ids=[[3], [4]])
    assert inputs.process("r", [1], marked).request.params.thinking_token_ids == [[3], [4]]


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("text", {}, "prompt"),
        ([1], {"stop": ["a"]}, "stop"),
        ([1], {"bad_words": ["a"]}, "stop"),
        ([1], {"thinking_token_budget": 4}, "thinking_token_budget"),
    ],
)
def test_without_a_tokenizer_what_needs_text_is_refused(prompt: Any, params: dict[str, Any], field: str) -> None:
    inputs = InputProcessor(LIMITS, NullTokenizer())
    with pytest.raises(InvalidRequestError) as caught:
        inputs.process("r", prompt, SamplingParams(**params))
    assert caught.value.field == field
    assert inputs.process("r", [1], SamplingParams(stop_token_ids=[3])).request.prompt_token_ids == [1]


def test_the_weight_of_parameters_is_what_their_lists_hold() -> None:
    params = SamplingParams(stop=["abc"], bad_words=["de"], stop_token_ids=[1, 2], allowed_token_ids=[5])
    assert weight_of(params) == 3 + 2 + 2 + 1


def test_structured_output_ends_here_for_now(inputs: InputProcessor) -> None:
    beam = BeamSearchParams(beam_width=2, max_tokens=3, structured_outputs=StructuredOutputsParams(regex="a"))
    alone = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
    for params in (alone, BeamSearch(32, EOS, beam).probe):
        request = inputs.process("r", "the dog", params).request
        grammar = request.attached(GrammarSpec)
        assert grammar is not None and grammar.source == "structured_outputs.regex"
        assert request.params.structured_outputs is None, "it goes no further than the engine's host"
