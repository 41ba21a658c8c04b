"""SamplingParams: vLLM's names and defaults; whatever cannot be meant is refused by name."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from cadence.core.errors import InvalidRequestError
from cadence.core.repetition import RepetitionDetectionParams
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams

DEFAULTS: dict[str, Any] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "output_kind": RequestOutputKind.CUMULATIVE,
    "stream_interval": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": [],
    "extra_args": None,
    "logits_processors": None,
}


def test_defaults() -> None:
    params = SamplingParams()
    assert {name: getattr(params, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        *((name, bad, "finite") for name in ("temperature", "top_p", "min_p") for bad in (math.nan, math.inf)),
        *((f"{name}_penalty", math.nan, "finite") for name in ("presence", "frequency", "repetition")),
        ("n", 0, "at least 1"),
        ("n", -3, "at least 1"),
        ("n", True, "an integer"),
        ("n", 1.0, "an integer"),
        ("n", "2", "an integer"),
        ("temperature", -0.1, "at least 0"),
        ("temperature", "hot", "a number"),
        ("temperature", None, "a number"),
        ("temperature", True, "a number"),
        ("top_p", 0.0, "greater than 0"),
        ("top_p", 1.0001, "between 0.0 and 1.0"),
        ("top_p", -0.5, "between 0.0 and 1.0"),
        ("top_k", -2, "at least -1"),
        ("top_k", 1.5, "an integer"),
        ("min_p", -0.01, "between 0.0 and 1.0"),
        ("min_p", 1.01, "between 0.0 and 1.0"),
        ("presence_penalty", 2.1, "between -2.0 and 2.0"),
        ("frequency_penalty", -2.1, "between -2.0 and 2.0"),
        ("repetition_penalty", 0.0, "greater than 0"),
        ("repetition_penalty", -1.0, "at least 0"),
        ("seed", 2**64, "64 bits"),
        ("seed", -(2**63) - 1, "at least"),
        ("seed", 1.5, "an integer"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", True, "an integer"),
        ("min_tokens", -1, "at least 0"),
        ("min_tokens", 17, r"at most max_tokens \(16\)"),
        ("logprobs", -2, "at least -1"),
        ("logprobs", False, "an integer"),
        ("prompt_logprobs", -2, "at least -1"),
        ("prompt_logprobs", 1.5, "an integer"),
        ("stop", "", "not empty"),
        ("stop", ["a", ""], "not empty"),
        ("stop", [1], "list of strings"),
        ("stop", 7, "list of strings"),
        ("stop_token_ids", [1, -1], "at least 0"),
        ("stop_token_ids", "12", "list of token ids"),
        ("stop_token_ids", [True], "an integer"),
        ("stream_interval", 0, "at least 1"),
        ("logit_bias", {"a": 1.0}, "an integer"),
        ("logit_bias", {1: math.nan}, "finite"),
        ("logit_bias", {-1: 1.0}, "at least 0"),
        ("logit_bias", [1], "a dict"),
        ("allowed_token_ids", [], "at least one"),
        ("allowed_token_ids", [1.0], "an integer"),
        ("bad_words", ["x", ""], "not empty"),
        ("bad_words", "x", "list of strings"),
        ("bad_words_token_ids", [[]], "at least one"),
        ("ignore_eos", 1, "True or False"),
        ("detokenize", None, "True or False"),
        ("output_kind", "delta", "RequestOutputKind"),
        ("extra_args", [1], "a dict"),
        ("logits_processors", [3], "callable"),
        ("skip_reading_prefix_cache", 1, "True, False or None"),
    ],
)
def test_a_bad_value_names_its_field_and_limit(field: str, value: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 3),
        ("routed_experts_prompt_start", 3),
        ("trace_decode_token_ids", [1]),
        ("truncate_prompt_tokens", 5),
        ("use_beam_search", True),
        ("length_penalty", 0.5),
        ("early_stopping", True),
    ],
)
def test_a_name_without_meaning_here_is_refused_with_the_reason_and_accepted_at_its_default(
    field: str, value: Any
) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field}=.* is not supported: .*\\.") as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field
    assert SamplingParams(**{field: getattr(SamplingParams(), field)}) == SamplingParams()


def test_budgets_and_repetitions() -> None:
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget is None
    assert SamplingParams(thinking_token_budget=0).thinking_token_budget == 0
    off = SamplingParams(repetition_detection=RepetitionDetectionParams())
    assert off == SamplingParams(repetition_detection={}) == SamplingParams()  # type: ignore[arg-type]
    given = RepetitionDetectionParams(max_pattern_size=3, min_count=2)
    params = SamplingParams(repetition_detection={"max_pattern_size": 3, "min_count": 2})  # type: ignore[arg-type]
    assert params.repetition_detection == given and list(given.sizes) == [1, 2, 3]
    for bad, says in (
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, "at most max_pattern_size"),
        ({"max_pattern_size": 2, "min_count": 1}, "min_count must be at least 2"),
        ({"max_pattern_size": -1}, "at least 0"),
        ({"max_pattern_size": 5000, "min_count": 2}, "at most 4096"),
        ({"size": 2}, "a dict of their names"),
        ("twice", "a dict of their names"),
    ):
        with pytest.raises(InvalidRequestError, match=says) as caught:
            SamplingParams(repetition_detection=bad)  # type: ignore[arg-type]
        assert caught.value.field.startswith("repetition_detection")


def test_drafts_of_a_request() -> None:
    """The engine's number is the limit, and the default."""
    assert SamplingParams().num_draft_tokens(4) == 4 and SamplingParams().num_draft_tokens(0) == 0
    for asked, made in ((0, 0), (1, 1), (4, 4), (9, 4)):
        params = SamplingParams(speculative={"num_tokens": asked})
        assert params.num_draft_tokens(4) == params.clone().num_draft_tokens(4) == made
    assert SamplingParams(speculative={}) == SamplingParams()
    given = {"num_tokens": 2}
    params = SamplingParams(speculative=given)
    given["num_tokens"] = 3
    assert params.speculative == {"num_tokens": 2}
    bad: Any
    for bad, field, says in (
        ({"num_tokens": -1}, "speculative.num_tokens", "at least 0"),
        ({"num_tokens": True}, "speculative.num_tokens", "an integer"),
        ({"num_tokens": 1.5}, "speculative.num_tokens", "an integer"),
        ({"num_token": 1}, "speculative", '"num_tokens"'),
        ({"num_tokens": 1, "method": "ngram"}, "speculative", '"num_tokens"'),
        (4, "speculative", '"num_tokens"'),
    ):
        with pytest.raises(InvalidRequestError, match=says) as caught:
            SamplingParams(speculative=bad)
        assert caught.value.field == field


def test_logprobs_of_given_tokens() -> None:
    params = SamplingParams(logprob_token_ids=[5, 3, 5])
    assert (params.logprob_token_ids, params.logprobs) == ([5, 3], 2)
    params.verify(vocab_size=10, max_logprobs=1, max_model_len=8)  # the cap is on the likeliest
    assert SamplingParams(logprob_token_ids=[]) == SamplingParams()
    with pytest.raises(InvalidRequestError, match="logprobs must be None or 2"):
        SamplingParams(logprob_token_ids=[5, 3], logprobs=1)
    with pytest.raises(InvalidRequestError, match="at most 128 token ids"):
        SamplingParams(logprob_token_ids=list(range(129)))
    with pytest.raises(InvalidRequestError, match="vocabulary size 10"):
        SamplingParams(logprob_token_ids=[10]).verify(vocab_size=10, max_logprobs=20, max_model_len=8)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidRequestError, match=r"no option 'tempature'\. Did you mean temperature\?"):
        SamplingParams(tempature=0.5)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="Known: allowed_token_ids, "):
        SamplingParams(quux=0.5)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="at most 16 positional arguments"):
        SamplingParams(*range(17))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="Did you mean beam_width"):
        BeamSearchParams(beam_with=2, max_tokens=3)  # type: ignore[call-arg]


def test_positional_arguments_stand_in_vllms_order() -> None:
    """n, presence, frequency and repetition penalty, temperature, top_p, top_k, min_p, seed, stop, ..."""
    given = SamplingParams(2, 0.1, 0.2, 1.3, 0.4, 0.5, 6, 0.07, 8, ["a"], [9], True, 12, 3, 4, 5)
    assert (given.n, given.presence_penalty, given.frequency_penalty, given.repetition_penalty) == (2, 0.1, 0.2, 1.3)
    assert (given.temperature, given.top_p, given.top_k, given.min_p, given.seed) == (0.4, 0.5, 6, 0.07, 8)
    assert (given.stop, given.stop_token_ids, given.ignore_eos) == (["a"], [9], True)
    assert (given.max_tokens, given.min_tokens, given.logprobs, given.prompt_logprobs) == (12, 3, 4, 5)
    assert BeamSearchParams(3, 7, True, 0.5, 2.0) == BeamSearchParams(
        beam_width=3, max_tokens=7, ignore_eos=True, temperature=0.5, length_penalty=2.0
    )


def test_values_are_brought_into_one_form() -> None:
    params = SamplingParams(
        temperature=1,
        top_k=-1,
        seed=-1,
        stop="end",
        stop_token_ids=(3, np.int64(4)),
        logprobs=True,
        logit_bias={"7": 250, 8: -250.0, 9: 0.5},
        top_p=np.float32(0.5),
    )
    assert type(params.temperature) is float
    assert (params.top_k, params.seed, params.logprobs, params.top_p) == (0, None, 1, 0.5)
    assert params.stop == params.stop_strings == ["end"]
    assert params.stop_token_ids == [3, 4]
    assert params.logit_bias == {7: 100.0, 8: -100.0, 9: 0.5}
    assert SamplingParams(seed=2**64 - 1).seed == 2**64 - 1
    assert SamplingParams(max_tokens=None, min_tokens=1000).max_tokens is None


def test_greedy() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=4, min_p=0.1)
    assert params.greedy
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)
    assert SamplingParams(temperature=1e-6).greedy
    assert not SamplingParams().greedy
    with pytest.raises(InvalidRequestError, match="n must be 1 when temperature is 0"):
        SamplingParams(temperature=0, n=2)


def test_a_tiny_temperature_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert SamplingParams(temperature=0.001).temperature == 0.01
    assert "0.001" in caplog.text
    caplog.clear()
    assert SamplingParams(temperature=0.01).temperature == 0.01
    assert not caplog.text


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequestError, match="detokenize"):
        SamplingParams(stop=["a"], detokenize=False)
    SamplingParams(stop_token_ids=[1], detokenize=False)


def test_prompt_logprobs_leave_the_prefix_cache_unread() -> None:
    assert SamplingParams(prompt_logprobs=0).skip_reading_prefix_cache is True
    assert SamplingParams(prompt_logprobs=0, skip_reading_prefix_cache=False).skip_reading_prefix_cache is True
    assert SamplingParams().skip_reading_prefix_cache is False
    assert SamplingParams(skip_reading_prefix_cache=True).skip_reading_prefix_cache is True


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"logit_bias": {100: 1.0}}, "logit_bias .* vocabulary size 100; got 100"),
        ({"allowed_token_ids": [5, 200]}, "allowed_token_ids .* 100; got 200"),
        ({"stop_token_ids": [100]}, "stop_token_ids .* 100; got 100"),
        ({"bad_words_token_ids": [[1, 100]]}, "bad_words .* 100; got 100"),
        ({"logprobs": 21}, "logprobs must be at most 20, the engine's max_logprobs .*; got 21"),
        ({"logprobs": -1}, "logprobs must be at most 20, the engine's max_logprobs .*; got -1"),
        ({"prompt_logprobs": 21}, "prompt_logprobs must be at most 20"),
        ({"min_tokens": 64, "max_tokens": None}, r"min_tokens must be below max_model_len \(64\)"),
    ],
)
def test_verify_knows_the_engine(sampling: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        SamplingParams(**sampling).verify(vocab_size=100, max_logprobs=20, max_model_len=64)


def test_verify_accepts_what_fits() -> None:
    SamplingParams(logit_bias={99: 1.0}, stop_token_ids=[0], logprobs=20, min_tokens=3).verify(100, 20, 64)
    SamplingParams(logprobs=-1, prompt_logprobs=5000).verify(100, -1, 64)
    SamplingParams(logprobs=-1).verify(100, 100, 64)


def test_verify_sees_fields_assigned_after_the_making() -> None:
    params = SamplingParams()
    params.temperature = math.nan
    with pytest.raises(InvalidRequestError, match="temperature"):
        params.verify(100, 20, 64)


def test_copies() -> None:
    def processor(output: list[int], logits: object) -> object:
        return logits

    params = SamplingParams(
        stop=["a"], logit_bias={1: 2.0}, bad_words_token_ids=[[1]], extra_args={"a": 1}, logits_processors=[processor]
    )
    twin = params.clone()
    assert twin == params
    assert twin.stop is not params.stop
    assert twin.logit_bias is not params.logit_bias
    assert twin.bad_words_token_ids[0] is not params.bad_words_token_ids[0]  # type: ignore[index]
    assert copy.copy(params) == copy.deepcopy(params) == params
    assert dataclasses.replace(params, n=3).n == 3
    params.logits_processors = None
    assert pickle.loads(pickle.dumps(params)) == params


def test_beam_search_params() -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=10)
    assert (params.temperature, params.length_penalty) == (0.0, 1.0)
    assert not params.ignore_eos
    assert not params.include_stop_str_in_output
    bad: dict[str, Any]
    for bad in (
        {"beam_width": 0},
        {"max_tokens": 0},
        {"temperature": -1},
        {"length_penalty": math.nan},
        {"ignore_eos": 1},
        {"structured_outputs": {}},
    ):
        with pytest.raises(InvalidRequestError, match=next(iter(bad))):
            BeamSearchParams(**({"beam_width": 4, "max_tokens": 10} | bad))


def test_torch_is_not_needed() -> None:
    code = "import sys, cadence.core.sampling_params; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
