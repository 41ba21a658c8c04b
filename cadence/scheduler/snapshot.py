"""The scheduler's books, written out for people."""

from __future__ import annotations

from cadence.core.engine_state import CACHED, FIRST_OWNER, FREE, EngineState, RequestView
from cadence.scheduler.kv.groups.block import NULL_BLOCK_ID
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.request_state import RequestState
from cadence.scheduler.rows import RowTable
from cadence.scheduler.stats import SchedulerStats


def take_snapshot(
    running: list[RequestState], waiting: list[RequestState], rows: RowTable, block_size: int, stats: SchedulerStats
) -> EngineState:
    """Without the map of blocks."""
    return EngineState(
        running=[_view(request, int(rows.confirmed_np[request.row])) for request in running],
        waiting=[_view(request, 0) for request in waiting],
        block_size=block_size,
        kv_usage=stats.kv_usage,
        prefix_queries=stats.prefix_queries,
        prefix_hits=stats.prefix_hits,
        num_preemptions=stats.num_preemptions,
    )


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
    owners = [CACHED if block.digest else FREE for block in kv.blocks]
    for index in range(len(running) - 1, -1, -1):
        for table in running[index].blocks.tables:
            for block in table:
                owners[block.id] = FIRST_OWNER + index
    owners[NULL_BLOCK_ID] = FREE
    return owners
