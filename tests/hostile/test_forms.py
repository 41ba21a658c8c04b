"""No form hurts a server that hears: each is answered in the shape of any other answer, within a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cadence.audio.languages import language_code
from cadence.audio.limits import AudioLimits
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server import make_state
from cadence.entrypoints.server.http.uploads import UPLOAD_PATHS
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.requests import TranscriptionParams
from cadence.entrypoints.speech.service import Speech
from tests.hostile.case import Case
from tests.hostile.forms import FormCases
from tests.hostile.judge import problems
from tests.hostile.wire import Connection
from tests.server.fakes_speech import TellsTimes, sound
from tests.server.helpers import FakeLLM, RunningApp, run_app, save_fake_model

SHARE = 7  # of the cases of fields, one in so many is sent by `make test`


class ChecksAsModels(TellsTimes):
    def check(self, params: TranscriptionParams) -> None:
        if params.language:
            language_code(params.language)
        SamplingParams(temperature=params.temperature, seed=params.seed, **params.sampling)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    model: Path = save_fake_model(tmp_path_factory.mktemp("fake_model"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_state, "open_speech", lambda *_: Speech(ChecksAsModels(), Recordings(AudioLimits())))
        with run_app(FakeLLM(model)) as running:
            yield running


@pytest.fixture(scope="module")
def cases(app: RunningApp) -> FormCases:
    with app.client() as client:
        document: dict[str, Any] = client.get("/openapi.json").json()
    return FormCases(document, sound(0.1))


async def findings(url: str, cases: Iterable[Case]) -> list[str]:
    connection = Connection(url)
    found = []
    for case in cases:
        answer = await connection.ask(case.request, 60.0)
        found += [f"{case.name}: {problem}" for problem in problems(case, answer)]
    connection.drop()
    return found


def test_forms_are_of_all_routes_that_take_files(cases: FormCases) -> None:
    assert cases.fields.keys() == UPLOAD_PATHS
    assert all(len(names) > 15 for names in cases.fields.values())


def test_every_field_takes_any_value(app: RunningApp, cases: FormCases) -> None:
    some = [case for number, case in enumerate(cases.of_fields()) if number % SHARE == 0]
    assert asyncio.run(findings(app.url, some)) == []


@pytest.mark.wide
def test_every_field_takes_every_value(app: RunningApp, cases: FormCases) -> None:
    assert asyncio.run(findings(app.url, cases.of_fields())) == []


def test_every_framing_is_answered(app: RunningApp, cases: FormCases) -> None:
    assert asyncio.run(findings(app.url, cases.of_framing())) == []
