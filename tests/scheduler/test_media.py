"""Which of a step's tokens get what towers make of pictures, and what a head that drafts sees beyond them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cadence.core.contract.media_work import PAGE, MediaRun, MediaStep
from cadence.core.inputs.media import IMAGE, MEDIA, MediaInput, MediaItem, MediaStats
from cadence.scheduler.feature import HostFeature
from cadence.scheduler.features.media.cache import EncoderCache
from cadence.scheduler.features.media.feature import MediaContents
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import RequestState
from cadence.scheduler.scheduler import Scheduler
from tests.helpers.toy_engine import ToyEngine, make_cache, make_config
from tests.helpers.toy_model import make_layout, make_request

ROW = 3


def request_of(*spans: tuple[int, int]) -> RequestState:
    """A prompt of twenty tokens; spans: of those that are pictures"""
    items = [MediaItem.of(IMAGE, begin, end - begin, np.array([begin]), (), False) for begin, end in spans]
    engine = ToyEngine(make_config(), make_layout((0,), 4), 60, 40)
    engine.add(make_request("a", list(range(20))))
    state = engine.scheduler._requests["a"]
    state.request = replace(state.request, attachments=(MediaInput(tuple(items)),))
    return state


def step(feature: MediaContents, request: RequestState, number: int, start: int, end: int) -> tuple[int, MediaStep]:
    """-> where the step ends, and what is sent with it"""
    draft = PlanDraft(number)
    end = feature.cut(draft, request, start, end, end)
    request.row = ROW
    feature.admitted(draft, request, end)
    return end, draft.payloads.get(MEDIA, MediaStep())


def told(runs: list[MediaRun]) -> list[tuple[int, int, int, int]]:
    assert all(run.row == ROW for run in runs)
    return [(run.at, run.count, run.first, run.beyond) for run in runs]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_head_sees_one_token_more(ahead: int) -> None:
    feature, request = MediaContents(EncoderCache(8 * PAGE), 100, ahead), request_of((4, 10), (10, 14))
    steps = [(0, 4), (4, 8), (8, 10), (10, 12), (12, 20)]
    sent = [step(feature, request, number, *each) for number, each in enumerate(steps, 1)]
    assert [end for end, _ in sent] == [end for _, end in steps]
    wanted = [
        [(4, 1, 0, 1)] if ahead else [],
        [(0, 4 + ahead, 0, ahead)],
        [(0, 2, 4, 0), (2, 1, 0, 1)] if ahead else [(0, 2, 4, 0)],
        [(0, 2 + ahead, 0, ahead)],
        [(0, 2, 2, 0)],
    ]
    assert [told(payload.runs) for _, payload in sent] == wanted
    assert [len(payload.works) for _, payload in sent] == ([1, 0, 1, 0, 0] if ahead else [0, 1, 0, 1, 0])
    assert feature.stats([], []) == MediaStats(queries=2, hits=0)


def test_a_step_is_not_shorter_for_it() -> None:
    """Where there is no room for the next picture beside the one in use, a head does without."""
    feature, request = MediaContents(EncoderCache(PAGE), 100, ahead=1), request_of((4, 10), (10, 14))
    end, payload = step(feature, request, 1, 0, 10)
    assert end == 10 and told(payload.runs) == [(4, 6, 0, 0)]
    end, payload = step(feature, request, 2, 10, 20)
    assert end == 20 and told(payload.runs) == [(0, 4, 0, 0)] and len(payload.works) == 1


def test_what_a_step_was_to_encode_is_encoded_by_the_next_where_no_device_hears_of_it() -> None:
    cache = EncoderCache(2 * PAGE)
    feature, request = MediaContents(cache, 100), request_of((4, 10), (10, 14))
    draft = PlanDraft(1)
    assert feature.cut(draft, request, 0, 8, 8) == 8
    assert len(draft.payloads[MEDIA].works) == 1
    feature.dropped(draft)
    _, payload = step(feature, request, 1, 0, 20)
    assert [work.length for work in payload.works] == [6, 4]
    assert len({page for work in payload.works for page in work.pages}) == 2
    assert feature.stats([], []) == MediaStats(queries=2, hits=0)
    other = request_of((0, 12), (12, 30))
    assert feature.cut(PlanDraft(2), request, 0, 20, 20) == 20
    assert feature.cut(PlanDraft(2), other, 0, 20, 20) == 0  # no room beside what the step uses
    feature.dropped(PlanDraft(2))
    assert feature.cut(PlanDraft(2), other, 0, 20, 20) == 12


class NotYet(HostFeature):
    """Lets the first step have nothing."""

    name = "not yet"

    def __init__(self) -> None:
        self._asked = 0

    def cut(self, draft: PlanDraft, request: RequestState, start: int, end: int, most: int) -> int:
        self._asked += 1
        return start if self._asked == 1 else end


def test_a_plan_without_rows_loses_no_picture() -> None:
    media = MediaContents(EncoderCache(2 * PAGE), 100)
    scheduler = Scheduler(make_config(), make_cache(4), make_layout((0,), 4), 60, 40, [media, NotYet()])
    scheduler.add(replace(make_request("a", list(range(12))), attachments=request_of((4, 10)).request.attachments))
    assert not len(scheduler.schedule().rows_np)
    plan = scheduler.schedule()
    assert len(plan.rows_np) == 1 and len(plan.payloads[MEDIA].works) == 1
