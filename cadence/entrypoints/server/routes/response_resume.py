"""A response in the background whose process is gone, made again here: it says what was said, which no client gets
twice, and goes on."""

from __future__ import annotations

import logging

from starlette.requests import Request

from cadence.core.contract.response_messages import ResumedResponse, StoreVerb
from cadence.entrypoints.server.http.admission import AdmittedRequest
from cadence.entrypoints.server.http.errors import reply_for
from cadence.entrypoints.server.http.stream import admitted
from cadence.entrypoints.server.http.tenants import TENANT
from cadence.entrypoints.server.responses.background import start_in_background
from cadence.entrypoints.server.responses.turn import PriorContext, Turn
from cadence.entrypoints.server.routes.response_request import ResponseRequest, make_turn, read_body
from cadence.entrypoints.server.routes.state import ServerState

logger = logging.getLogger("cadence.server")


async def resume_response(resumed: ResumedResponse, state: ServerState) -> None:
    """It was admitted before, and is not refused now."""
    response_id, store = resumed.job.origin.id, state.responses.of(resumed.tenant)
    try:
        turn = await _made_again(resumed, state)
    except Exception as error:
        reply = reply_for(error)
        if reply.is_bug:
            logger.error("a response could not be resumed", exc_info=error)
        store.send(StoreVerb.FAIL, response_id, reason=str(reply.body()["error"]["message"]).rstrip("."))
        return
    store.runs[response_id] = turn.run
    turn.run.cancelled = resumed.is_cancelled
    entry = AdmittedRequest(state.admission, turn.job.estimated_tokens(), 1, turn.job.tenant)
    events = admitted(entry, state.chat.run(turn.job), turn.check)
    start_in_background(turn, store, events, resumed.left_s)


async def _made_again(resumed: ResumedResponse, state: ServerState) -> Turn:
    job = resumed.job
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in job.headers.items()]
    request = Request({"type": "http", "headers": headers, TENANT: resumed.tenant})
    body = await state.bodies.run(len(job.body), read_body, job.body, request, state)
    earlier = PriorContext(job.conversation, job.referenced)
    asked = ResponseRequest(body, job.body, earlier, request, job.origin, resumed.events, resumed.token_ids)
    return await make_turn(asked, state.check_model(body.model), len(job.body) + earlier.size, state)
