"""/engine/state: what the page's live view shows."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from cadence.core.contract.engine_state import joined
from cadence.engine.metrics.summed import with_others
from cadence.entrypoints.server.routes.state import State
from cadence.entrypoints.webui.state_view import describe, describe_engine, seen_by

router = APIRouter(tags=["engine"])


@router.get("/engine/state", summary="The engine's state")
async def engine_state(request: Request, state: State) -> JSONResponse:
    """Who runs, who waits, who holds which KV block, and totals since the start, of all engines together; and a line of
    each. With several API keys the requests of the others are shown as one."""
    states = await state.llm.engine_states()
    engine = joined(states)
    shown = seen_by(engine, lambda request_id: state.tenants.owns(request.scope, request_id))
    metrics = with_others(state.llm.get_metrics(), await state.peers.counts())
    body = describe(shown, metrics, state.model_names[0])
    body |= {"num_running": len(engine.running), "num_waiting": len(engine.waiting)}
    body["engines"] = [describe_engine(one) for one in states]
    return JSONResponse(body, headers={"Cache-Control": "no-store"})
