"""The scheduler's books, written out for people."""

from __future__ import annotations

from cadence.core.contract.engine_state import CACHED, FIRST_OWNER, FREE, RequestView
from cadence.scheduler.kv.kinds.block import NULL_BLOCK_ID
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.request_state import RequestState
from cadence.scheduler.rows import RowTable


def running_views(running: list[RequestState], rows: RowTable) -> list[RequestView]:
    return [_view(request, computed=int(rows.confirmed_np[request.row])) for request in running]


def waiting_views(waiting: list[RequestState]) -> list[RequestView]:
    return [_view(request, computed=0) for request in waiting]


def _view(request: RequestState, computed: int) -> RequestView:
    return RequestView(
        request_id=request.id,
        prompt_tokens=request.prompt_len,
        output_tokens=request.num_output_tokens,
        computed_tokens=computed,
        num_preemptions=request.num_preemptions,
    )


def block_owners(running: list[RequestState], kv: KVManager) -> list[int]:
    """By block id. A shared block shows the first of its holders."""
    owners = [FREE] * kv.num_blocks
    for block_id in kv.cached_ids:
        owners[block_id] = CACHED
    for index in range(len(running) - 1, -1, -1):
        for table in running[index].blocks.tables:
            for block in table:
                owners[block.id] = FIRST_OWNER + index
    owners[NULL_BLOCK_ID] = FREE
    return owners
