"""Keywords of the calls that make an engine: hints are named, unknown ones are errors."""

from __future__ import annotations

import logging

import pytest

from cadence.core.errors import InvalidRequestError
from cadence.engine.unused import name_start_keywords


def test_hints_are_named_and_unknown_ones_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cadence.engine"):
        name_start_keywords("LLMEngine.from_engine_args", {"usage_context": None, "stat_loggers": ["mine"]})
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == ["stat_loggers"]
    with pytest.raises(InvalidRequestError, match="has no option 'logit_processors'"):
        name_start_keywords("LLMEngine.from_engine_args", {"logit_processors": None})
