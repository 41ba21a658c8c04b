"""/v1/chat/completions/batch: several conversations in one request, and one choice for each in its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.chat.events import ChatJob
from cadence.entrypoints.server.chat.failures import check_event
from cadence.entrypoints.server.http.request_ids import request_id
from cadence.entrypoints.server.http.stream import checked, json_response
from cadence.entrypoints.server.protocol.chat_answer import ChatAnswer, ChatView
from cadence.entrypoints.server.protocol.chat_batch import batch_schema, decode_batch, parse_batch
from cadence.entrypoints.server.protocol.sampling import check_weight
from cadence.entrypoints.server.routes.chat import prepare_job
from cadence.entrypoints.server.routes.state import ServerState, State
from cadence.process.together import all_or_none

router = APIRouter(tags=["chat"])

CONVERSATION_BYTES = 1024  # of a body, that are read in the time in which one conversation becomes a job

Work = list[tuple[ChatJob, ChatView]]


@router.post("/v1/chat/completions/batch", openapi_extra=batch_schema())
async def create_chat_completions(request: Request, state: State) -> Response:
    content = await state.bodies.read(request, decode_batch)
    weight = len(content["messages"]) * CONVERSATION_BYTES
    work, size = await state.bodies.run(weight, _prepare, content, request, state)
    async with state.admission.enter(request, size, len(work)):
        sources = [(checked(state.chat.run(job), check_event), view) for job, view in work]
        answers = await all_or_none([ChatAnswer(view).read(events) for events, view in sources])
    return json_response(_joined(answers))


def _prepare(content: dict[str, Any], request: Request, state: ServerState) -> tuple[Work, int]:
    """What is asked, and how many tokens that may be."""
    bodies = parse_batch(content, state.ignored.of(request))
    if len(bodies) > state.options.max_completions:
        raise InvalidRequestError(f"messages must have at most {state.options.max_completions} entries", "messages")
    given = bodies[0].request_id
    name = f"chatcmpl-{given}" if given else request_id(request, "chatcmpl-")
    work = [prepare_job(one, state, name, request) for one in bodies]
    check_weight(work[0][0].params, len(work))
    return work, sum(job.estimated_tokens() for job, _ in work)


def _joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    choices = [{**answer["choices"][0], "index": number} for number, answer in enumerate(answers)]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    usage = {name: sum(answer["usage"][name] for answer in answers) for name in names}
    return {**answers[0], "choices": choices, "usage": usage}
