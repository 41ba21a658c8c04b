"""What a step brought, request by request."""

from __future__ import annotations

from cadence.core.contract.update import RequestUpdate
from cadence.scheduler.request_state import RequestState

News = dict[int, RequestUpdate]  # by row


def news_of(request: RequestState, new_token_ids: list[int]) -> RequestUpdate:
    return RequestUpdate(
        request.id,
        new_token_ids,
        (),
        (),
        None,
        None,
        request.num_cached,
        request.num_preemptions,
        request.first_scheduled_time,
        digests=request.digests if request.digests and request.has_no_news else (),
        number=request.number,
    )
