"""Keywords of the calls that make an engine: hints are named, unknown ones are errors."""

from __future__ import annotations

import logging

import pytest

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import SamplingParams
from cadence.engine.text.unused import UnusedOptions, name_start_keywords


def test_hints_are_named_and_unknown_ones_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cadence.engine"):
        name_start_keywords("LLMEngine.from_engine_args", {"usage_context": None, "stat_loggers": ["mine"]})
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == ["stat_loggers"]
    with pytest.raises(InvalidRequestError, match="has no option 'logit_processors'"):
        name_start_keywords("LLMEngine.from_engine_args", {"logit_processors": None})


def test_more_drafts_than_the_engine_makes_are_named() -> None:
    def named(asked: int, most: int) -> list[str]:
        params = SamplingParams(speculative={"num_tokens": asked})
        return UnusedOptions("fcfs", False, most).warnings(params, 0, [])

    assert named(4, 4) == named(0, 4) == named(0, 0) == []
    assert named(5, 4) == ["speculative.num_tokens has no effect beyond 4, the engine's number of drafts"]
    assert named(1, 0) == ["speculative.num_tokens has no effect beyond 0, the engine's number of drafts"]
    assert UnusedOptions("fcfs", False, 0).warnings(SamplingParams(), 0, []) == []
