"""What the front accepts the engine can read: parameters survive the way into the engine process unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.contract.codec import decode_request, encode_request
from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import SamplingParams
from cadence.engine.text.input_limits import InputLimits
from cadence.engine.text.input_processor import InputProcessor
from cadence.engine.text.parallel_sampling import fan_out
from tests.helpers.wide import examples

VOCAB, LENGTH = 64, 32
EDGES = [0, 1, -1, 2, 31, 63, 64, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 2**200]
FLOATS = [0.0, -0.0, 1.0, 2.0, 1e-6, 1e-300, 1e300, 0.5, float("nan"), float("inf"), 10**400]
INTEGERS = st.sampled_from(EDGES) | st.integers(-3, 70)
NUMBERS = st.sampled_from(FLOATS) | st.floats()
WORDS = st.lists(st.text(st.sampled_from(" \n\ta\u00a0\u200bé"), max_size=3), max_size=3)
TOKENS = st.lists(INTEGERS, max_size=4)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("n", "top_k", "min_tokens", "max_tokens", "logprobs", "prompt_logprobs", "seed"), INTEGERS),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"), NUMBERS),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), TOKENS),
    **dict.fromkeys(("bad_words", "stop"), WORDS),
    "stream_interval": INTEGERS,
    "logit_bias": st.dictionaries(INTEGERS | st.sampled_from(["1", "01", "²", "9" * 5000]), NUMBERS, max_size=3),
    "ignore_eos": st.booleans(),
    "speculative": st.dictionaries(st.sampled_from(["num_tokens", "k"]), INTEGERS, max_size=2),
}


class StrippingTokenizer:
    """A token for every character but white space, which some tokenizers drop."""

    def require(self, what: str, field: str) -> None: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(char) % VOCAB for char in text if not char.isspace()]


PROCESSOR = InputProcessor(
    InputLimits(VOCAB, LENGTH, max_logprobs=-1, seed=0, eos_token_ids=frozenset({2})),
    StrippingTokenizer(),  # type: ignore[arg-type]
)


@examples(80, 800)
@given(st.fixed_dictionaries({}, optional=FIELDS), INTEGERS)
def test_what_is_accepted_can_be_read(options: dict[str, Any], priority: int) -> None:
    """Everything else is an InvalidRequestError: no other exception, whatever the values."""
    try:
        processed = PROCESSOR.process("r", [1, 2, 3], SamplingParams(**options), priority)
    except InvalidRequestError as error:
        assert error.field.partition(".")[0] in (*options, "priority") and len(str(error)) < 300
        return
    children = fan_out(processed.request)[:3]
    again = [decode_request(encode_request(child)) for child in children]
    assert again == children
    assert all(0 <= token < VOCAB for word in again[0].params.bad_words_token_ids or () for token in word)


@pytest.mark.parametrize("words", [[" "], ["\n"], ["a", "\t "]])
def test_a_word_without_tokens_is_refused_by_name(words: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="bad_words") as caught:
        PROCESSOR.process("r", [1], SamplingParams(bad_words=words))
    assert caught.value.field == "bad_words"


def test_no_first_token_left() -> None:
    every = [chr(64 + token) for token in range(VOCAB)]
    barred = SamplingParams(bad_words=[word for word in every if not word.isspace()])
    with pytest.raises(InvalidRequestError) as caught:
        PROCESSOR.process("r", [1], barred)
    assert caught.value.field == "bad_words"
    ends = SamplingParams(allowed_token_ids=[2], min_tokens=1)
    with pytest.raises(InvalidRequestError) as caught:
        PROCESSOR.process("r", [1], ends)
    assert caught.value.field == "min_tokens"
    PROCESSOR.process("r", [1], SamplingParams(allowed_token_ids=[2], min_tokens=1, ignore_eos=True))
