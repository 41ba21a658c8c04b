"""Runs of kept drafts: where they end, how they are counted, streamed and limited, and what fails in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import RequestOutput, SamplingParams
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.llm_engine import LLMEngine
from tests.e2e.test_speculation import DRAFTS, LOOKED_UP, TOLD, assert_same, opened, run, said, texts_of
from tests.helpers.tiny_models import VOCAB
from tests.helpers.told_proposer import Texts

pytestmark = pytest.mark.engine

PROMPT = [41, 7, 290, 113, 58]
LONG = 36  # tokens of an answer that nothing stops


class Twins:
    """An engine without drafts, and one whose proposer is told what the first one says."""

    def __init__(self, plain: LLMEngine, drafting: LLMEngine, texts: Texts) -> None:
        self.plain = plain
        self.drafting = drafting
        self.texts = texts

    def says(self, **params: Any) -> RequestOutput:
        """To the prompt, alone and without drafts."""
        return run(self.plain, [(PROMPT, made(**params))])[0]

    def drafts(self, right: float, *texts: list[int], **params: Any) -> RequestOutput:
        self.texts.tell(texts, right)
        return run(self.drafting, [(PROMPT, made(**params))])[0]


def made(**params: Any) -> SamplingParams:
    kind = RequestOutputKind.FINAL_ONLY
    return SamplingParams(**{"temperature": 0, "max_tokens": LONG, "ignore_eos": True, "output_kind": kind, **params})


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module", params=["one by one", "bursts of 4, two steps in flight"])
def twins(directory: Path, request: pytest.FixtureRequest) -> Any:
    texts = Texts(VOCAB)
    deep = {"num_scheduler_steps": 4, "async_scheduling": True} if "bursts" in request.param else {}
    with opened(directory) as plain, opened(directory, texts, speculative_config=TOLD, **deep) as drafting:
        yield Twins(plain, drafting, texts)


@pytest.fixture(scope="module")
def answer(twins: Twins) -> list[int]:
    """To the prompt, without an end."""
    return list(twins.says().outputs[0].token_ids)


def firsts(answer: list[int], count: int) -> list[int]:
    """Places up to `count` whose token is new there."""
    return [place for place in range(count) if answer[place] not in answer[:place]]


def test_a_stop_id_ends_a_run_wherever_it_stands(twins: Twins, answer: list[int]) -> None:
    """After the first token come runs of five: a stop is met at each place in one. What was kept after it is dropped,
    also where the device does not know the id, having room for sixteen."""
    text = PROMPT + answer
    places = firsts(answer, 13)
    assert len({place % (DRAFTS + 1) for place in places}) == DRAFTS + 1
    for place in places:
        stop = answer[place]
        others = [token for token in range(VOCAB) if token not in answer and token != stop]
        for stops in ([stop], [*others[:20], stop]):
            expected = twins.says(stop_token_ids=stops)
            found = twins.drafts(1.0, text, stop_token_ids=stops)
            assert_same([found], [expected], (place, len(stops)))
            completion = found.outputs[0]
            assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
            assert list(completion.token_ids) == answer[: place + 1]
            assert completion.speculation.num_accepted <= place


def test_the_end_of_the_sequence_too(twins: Twins, answer: list[int]) -> None:
    """The model's own end token, pushed to the top at the places that a bias reaches: after one of its tokens."""
    for bias in (3.0, 4.0, 6.0):
        params = {"ignore_eos": False, "logit_bias": {1: bias}}
        expected = twins.says(**params)
        endless = [*PROMPT, *expected.outputs[0].token_ids, *answer]
        assert_same([twins.drafts(1.0, endless, **params)], [expected], bias)


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_max_tokens_ends_a_run_wherever_it_stands(twins: Twins, answer: list[int], right: float) -> None:
    for count in range(1, 13):
        found = twins.drafts(right, PROMPT + answer, max_tokens=count)
        assert list(found.outputs[0].token_ids) == answer[:count] and found.outputs[0].finish_reason == "length"
        assert_same([found], [twins.says(max_tokens=count)], count)


def test_min_tokens_counts_inside_a_run(twins: Twins, answer: list[int]) -> None:
    stops = answer[2:24:3]
    for least in range(0, 14):
        params = {"stop_token_ids": stops, "min_tokens": least, "logprobs": 1}
        expected = twins.says(**params)
        assert len(expected.outputs[0].token_ids) >= least
        found = twins.drafts(1.0, *texts_of([expected]), PROMPT + answer, **params)
        assert_same([found], [expected], least)


def test_a_stop_string_ends_a_run_wherever_it_stands(twins: Twins, answer: list[int]) -> None:
    texts = twins.says().outputs[0].text
    strings = {texts[at : at + size] for at in range(0, 20, 3) for size in (1, 2)} - {"\ufffd", ""}
    assert len(strings) > 5
    for string in sorted(strings):
        for include in (False, True):
            params = {"stop": [string], "include_stop_str_in_output": include}
            expected = twins.says(**params)
            found = twins.drafts(1.0, PROMPT + answer, **params)
            assert_same([found], [expected], string)


def test_counts_add_up(twins: Twins, answer: list[int]) -> None:
    """Each forward brings one token of its own and the drafts that were kept; that of the prompt has none."""
    text, no_drafts = PROMPT + answer, 1
    all_right = twins.drafts(1.0, text).speculation
    assert all_right.num_accepted == all_right.num_drafted > 0
    assert no_drafts + all_right.num_forwards + all_right.num_accepted == LONG
    all_wrong = twins.drafts(0.0, text).speculation
    assert all_wrong.num_accepted == 0 and sum(all_wrong.accepted_by_position) == 0
    assert no_drafts + all_wrong.num_forwards == LONG - 1, "before the last token there is no room for a draft"
    half = twins.drafts(0.5, text)
    stats, drafted = half.speculation, half.outputs[0].drafted
    assert 0 < stats.num_accepted < stats.num_drafted and stats == half.outputs[0].speculation
    assert len(drafted) == stats.num_accepted and list(drafted) == sorted({*drafted}) and drafted[-1] < LONG
    for by_position in (each.accepted_by_position for each in (all_right, all_wrong, stats)):
        assert list(by_position) == sorted(by_position, reverse=True), "a draft counts if those before it were right"


def test_a_request_has_as_many_drafts_as_it_wants(twins: Twins, answer: list[int]) -> None:
    twins.texts.tell([PROMPT + answer], 1.0)
    limits = [0, 1, 3, None, 9, 0]
    asked = [None if limit is None else {"num_tokens": limit} for limit in limits]
    found = run(twins.drafting, [(PROMPT, made(speculative=speculative)) for speculative in asked])
    for limit, output in zip(limits, found, strict=True):
        assert list(output.outputs[0].token_ids) == answer
        most = DRAFTS if limit is None else min(limit, DRAFTS)
        assert len(output.speculation.drafted_by_position) == most, limit
        assert output.speculation.num_accepted == output.speculation.num_drafted


def test_a_host_processor_sees_no_draft(twins: Twins, answer: list[int]) -> None:
    seen: list[int] = []

    def remember(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(len(output))
        return logits

    found = twins.drafts(1.0, PROMPT + answer, logits_processors=[remember])
    assert list(found.outputs[0].token_ids) == answer and found.speculation.num_drafted == 0
    assert seen == list(range(LONG))


@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
def test_a_stream_adds_up(twins: Twins, answer: list[int], kind: RequestOutputKind) -> None:
    expected = twins.says(logprobs=1, stop=["\x00 never \x00"])
    twins.texts.tell([PROMPT + answer], 0.5)
    twins.drafting.add_request("stream", PROMPT, made(logprobs=1, stop=["\x00 never \x00"], output_kind=kind))
    tokens: list[int] = []
    logprobs: list[Any] = []
    places: list[int] = []
    text = ""
    largest = 0
    while twins.drafting.has_unfinished_requests():
        for output in twins.drafting.step():
            new = output.outputs[0]
            if kind is RequestOutputKind.CUMULATIVE:
                assert list(new.token_ids)[: len(tokens)] == tokens and new.text.startswith(text)
                largest = max(largest, len(new.token_ids) - len(tokens))
                tokens, text, logprobs, places = list(new.token_ids), new.text, list(new.logprobs or ()), [*new.drafted]
            else:
                largest = max(largest, len(new.token_ids))
                places += [len(tokens) + place for place in new.drafted]
                tokens += new.token_ids
                text += new.text
                logprobs += new.logprobs or ()
            last = output
    whole = expected.outputs[0]
    assert (tokens, text, logprobs) == (list(whole.token_ids), whole.text, list(whole.logprobs or ()))
    assert largest > 1 and len(places) == last.speculation.num_accepted > 0
    assert last.finished and last.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("graphs", ["", "padded"])
@pytest.mark.parametrize("steps", [1, 4])
def test_drafts_stay_within_the_models_length(directory: Path, graphs: str, steps: int) -> None:
    """Rows end with the last token that the context has room for. Four of them have all blocks between them: one for
    positions beyond the length would be another row's."""
    length, num_blocks = 48, 12
    limits = {"max_model_len": length, "block_size": 16, "num_scheduler_steps": steps}
    texts = Texts(VOCAB)
    few = {**limits, "speculative_config": TOLD, "num_gpu_blocks_override": num_blocks + 1, "max_num_seqs": 4}
    with (
        opened(directory, **limits) as plain,
        opened(directory, texts, graphs, **few) as told,
        opened(directory, **limits, speculative_config=LOOKED_UP) as looking,
    ):
        for sizes in ((47, 46, 43, 30), (40, 40, 40, 40)):
            prompts = [([9 + index] * 3 + PROMPT * 9)[:size] for index, size in enumerate(sizes)]
            requests = [(prompt, made(max_tokens=None)) for prompt in prompts]
            expected = run(plain, requests)
            assert [len(text) for text in texts_of(expected)] == [length] * 4
            assert_same(run(looking, requests), expected, "looked up")
            for right in (0.0, 1.0):
                texts.tell([[*text, *PROMPT] for text in texts_of(expected)], right)
                found = run(told, requests)
                assert_same(found, expected, right)
                assert not any(output.metrics.num_preemptions for output in found if output.metrics), right


class FailsAfter:
    """A device processor that leaves no token to choose after a token."""

    on_device = True

    def __init__(self, token: int) -> None:
        self._token = token

    def __call__(
        self, tokens: torch.Tensor, lengths: torch.Tensor, prompt_lens: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        last = tokens.gather(1, lengths[:, None].long() - 1)
        return logits.masked_fill(last == self._token, float("-inf"))


class RaisesAfter(FailsAfter):
    """One that raises there."""

    def __call__(
        self, tokens: torch.Tensor, lengths: torch.Tensor, prompt_lens: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        if (tokens.gather(1, lengths[:, None].long() - 1) == self._token).any():
            raise ValueError(f"nothing comes after {self._token}")
        return logits


@pytest.mark.parametrize("processor", [FailsAfter, RaisesAfter])
def test_what_fails_after_a_draft_fails_when_the_row_comes_there(
    twins: Twins, answer: list[int], processor: type[FailsAfter]
) -> None:
    for place in firsts(answer, 9):
        params = {"logits_processors": [processor(answer[place])], "logprobs": 1}
        expected = twins.says(**params)
        assert expected.outputs[0].finish_reason == "error"
        for right in (0.0, 0.5, 1.0):
            found = twins.drafts(right, PROMPT + answer, **params)
            assert said(found) == said(expected), (place, right)
            assert list(found.outputs[0].token_ids) == answer[: place + 1]


@pytest.mark.parametrize("processor", [FailsAfter, RaisesAfter])
def test_what_fails_after_a_wrong_draft_fails_nobody(
    twins: Twins, answer: list[int], processor: type[FailsAfter]
) -> None:
    never = next(token for token in range(VOCAB) if token not in answer)
    params = {"logits_processors": [processor(never)]}
    wrong = [*PROMPT, *answer[:9], *([never] * LONG)]
    found = twins.drafts(1.0, wrong, **params)
    assert list(found.outputs[0].token_ids) == answer and found.outputs[0].finish_reason == "length"
    assert found.speculation.num_drafted > found.speculation.num_accepted


def test_a_processor_that_raises_for_one_fails_one(twins: Twins, answer: list[int]) -> None:
    """A processor that several requests share, at the same time."""
    prompts = [PROMPT, [*PROMPT[:4], 200], [*PROMPT[:4], 201]]
    spoken = [output.outputs[0].token_ids for output in run(twins.plain, [(prompt, made()) for prompt in prompts])]
    culprit = next(token for token in spoken[0][5:] if token not in spoken[1])
    params = made(logits_processors=[RaisesAfter(culprit)])
    requests = [(prompt, params) for prompt in prompts]
    expected = [run(twins.plain, [request])[0] for request in requests]
    assert [output.outputs[0].finish_reason for output in expected][:2] == ["error", "length"]
    twins.texts.tell(texts_of(expected), 0.5)
    assert_same(run(twins.plain, requests), expected, "without drafts")
    assert_same(run(twins.drafting, requests), expected, "with drafts")
