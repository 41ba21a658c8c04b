"""One request's way back to text: whole characters, stop strings, what each kind of output holds."""

from __future__ import annotations

from typing import Any

import pytest

from cadence.core.contract.request import FinishReason
from cadence.core.failure import Failure, FailureCode
from cadence.core.outputs import CompletionOutput
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.text.logprobs import LogprobNames
from cadence.engine.text.request_text import RequestText
from cadence.text.null_tokenizer import AnyTokenizer, NullTokenizer
from cadence.text.tokenizer import Tokenizer
from tests.engine.updates import make_request, make_update, token_logprobs


class Reader:
    """Takes updates in and keeps what is shown."""

    def __init__(self, tokenizer: AnyTokenizer, **params: Any) -> None:
        self.text = RequestText(make_request(**params), "prompt", 0, tokenizer)
        self.names = LogprobNames(tokenizer)
        self.shown: list[CompletionOutput] = []

    def take(self, *update: Any, **more: Any) -> str:
        self.text.accept(make_update(*update, **more), self.names)
        if not self.text.wants_output():
            return ""
        self.shown.append(self.text.completion())
        return self.shown[-1].text


def test_half_a_character_waits_for_its_other_half(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, output_kind=RequestOutputKind.DELTA)
    ids = tokenizer.encode("a🦊b", add_special_tokens=False)
    deltas = [reader.take([token]) for token in ids]
    assert len(ids) > 3 and "".join(deltas) == "a🦊b" and "" in deltas and "\ufffd" not in "".join(deltas)


def test_what_is_held_back_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, stop=["fox jumps"])
    assert reader.take(tokenizer.encode("the fox", add_special_tokens=False)) == "the "
    assert reader.take([], FinishReason.LENGTH) == "the fox"
    assert reader.shown[-1].finish_reason == "length"


@pytest.mark.parametrize("included", [False, True])
def test_a_stop_string_ends_the_request_where_it_ends(tokenizer: Tokenizer, included: bool) -> None:
    reader = Reader(tokenizer, stop=["lazy"], include_stop_str_in_output=included)
    ids = tokenizer.encode("the lazy dog", add_special_tokens=False)
    for token in ids:
        reader.take([token])
        if reader.text.finish_reason is not None:
            break
    last = reader.shown[-1]
    assert last.text == ("the lazy" if included else "the ")
    assert (last.finish_reason, last.stop_reason) == ("stop", "lazy")
    assert len(last.token_ids) < len(ids)


def test_a_stop_string_does_not_count_before_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("lazy lazy", add_special_tokens=False)
    first = tokenizer.encode("lazy", add_special_tokens=False)
    reader = Reader(tokenizer, stop=["lazy"], min_tokens=len(first))
    reader.take(ids[: len(first)])
    assert reader.text.finish_reason is None
    reader.take(ids[len(first) :])
    assert reader.text.stop_reason == "lazy" and reader.shown[-1].text == "lazy "


def test_the_token_that_ends_a_request_is_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    for included, text in ((False, tokenizer.decode(ids[:-1])), (True, "the dog")):
        reader = Reader(tokenizer, stop_token_ids=[ids[-1]], include_stop_str_in_output=included)
        assert reader.take(ids, FinishReason.STOP, ids[-1]) == text
        assert reader.shown[-1].token_ids == ids and reader.shown[-1].stop_reason == ids[-1]


def test_a_failure_is_a_code_and_a_sentence(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer)
    reader.take([], FinishReason.ERROR, Failure(FailureCode.NO_TOKEN_LEFT, "none was left"))
    last = reader.shown[-1]
    assert (last.finish_reason, last.stop_reason, last.failure) == ("error", "none was left", "no_token_left")


def test_each_kind_of_output(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    pieces = [tokenizer.decode([token]) for token in ids]
    readers = {kind: Reader(tokenizer, output_kind=kind) for kind in RequestOutputKind}
    for reader in readers.values():
        for token in ids[:-1]:
            reader.take([token])
        reader.take(ids[-1:], FinishReason.LENGTH)
    shown = {kind: [one.text for one in reader.shown] for kind, reader in readers.items()}
    assert shown[RequestOutputKind.DELTA] == pieces
    assert shown[RequestOutputKind.CUMULATIVE] == ["".join(pieces[:end]) for end in range(1, len(ids) + 1)]
    assert shown[RequestOutputKind.FINAL_ONLY] == ["the dog"]


def test_stream_interval_shows_the_first_token_then_every_nth(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, output_kind=RequestOutputKind.DELTA, stream_interval=3)
    for token in range(10, 18):
        reader.take([token])
    reader.take([18], FinishReason.LENGTH)
    assert [one.token_ids for one in reader.shown] == [[10], [11, 12, 13], [14, 15, 16], [17, 18]]


def test_logprobs_carry_the_texts_and_ranks_of_tokens(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, logprobs=1)
    reader.take([20, 21], logprobs=[token_logprobs(20, -1.5, 30), token_logprobs(21, -0.5, 31)])
    shown = reader.shown[-1]
    assert shown.logprobs is not None and shown.cumulative_logprob == -2.0
    position = shown.logprobs[0]
    assert {token: (entry.rank, entry.decoded_token) for token, entry in position.items()} == {
        20: (2, tokenizer.decode([20])),
        30: (1, tokenizer.decode([30])),
    }


def test_an_output_that_repeats_itself_is_ended(tokenizer: Tokenizer) -> None:
    watched = {"min_pattern_size": 2, "max_pattern_size": 2, "min_count": 3}
    reader = Reader(tokenizer, repetition_detection=watched)
    reader.take([8, 9, 8, 9, 8])
    assert reader.text.finish_reason is None
    reader.take([9, 8, 9])
    assert reader.text.finish_reason is FinishReason.REPETITION and reader.text.token_ids == [8, 9] * 3


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_without_text_there_are_tokens_alone(tokenizer: Tokenizer, with_tokenizer: bool) -> None:
    """skip_tokenizer_init, and detokenize=False."""
    reader = Reader(tokenizer if with_tokenizer else NullTokenizer(), detokenize=not with_tokenizer, logprobs=1)
    assert reader.take([20, 21], FinishReason.LENGTH, logprobs=[token_logprobs(20, -1.0, 30)] * 2) == ""
    assert reader.shown[-1].token_ids == [20, 21] and reader.shown[-1].finish_reason == "length"


def test_token_texts_without_a_tokenizer_are_none() -> None:
    reader = Reader(NullTokenizer(), logprobs=1)
    reader.take([20], logprobs=[token_logprobs(20, -1.0, 30)])
    assert reader.shown[-1].logprobs is not None
    assert [entry.decoded_token for entry in reader.shown[-1].logprobs[0].values()] == [None, None]
