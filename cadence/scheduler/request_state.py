"""A request as the scheduler keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from cadence.core.contract.request import EngineRequest
from cadence.core.sampling_params import RequestOutputKind
from cadence.scheduler.burst import needs_host
from cadence.scheduler.kv.kinds.block import RequestBlocks

NO_ROW = -1
NOT_TOLD = 2**62  # later than any

OrderKey = tuple[int, float, int]  # (priority, arrival, number): smaller is served first and preempted last


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class RequestState:
    """Counters of running requests lie in `RowTable`, by row; here is what outlives a row."""

    __slots__ = (
        "begins_at",
        "blocks",
        "digests",
        "first_scheduled_time",
        "id",
        "kept",
        "key",
        "made_way",
        "max_len",
        "needs_host",
        "next_prompt_logprob",
        "num_cached",
        "num_preemptions",
        "number",
        "parked",
        "prompt_len",
        "reads_cache",
        "request",
        "row",
        "samples",
        "status",
        "stop_ids",
        "streams",
        "tokens",
        "told_in",
        "waits",
    )

    def __init__(
        self,
        request: EngineRequest,
        key: OrderKey,
        blocks: RequestBlocks,
        max_model_len: int,
        prepared: Mapping[str, Any],
    ) -> None:
        self.request = request
        self.kept = dict(prepared)  # by features, under their names: what was prepared for it, at first
        self.waits = False  # for mail, before its tokens are chosen
        self.id = request.request_id
        self.key = key
        self.number = key[2]  # at least 1, and no other request's of this scheduler, ever
        self.blocks = blocks
        self.tokens = [*request.prompt_token_ids, *request.output_token_ids]  # all whose value the host knows
        self.prompt_len = len(request.prompt_token_ids)
        self.samples = request.samples  # it gets tokens
        # One that gets none has a limit that it never reaches: all of its tokens are computed.
        self.max_len = min(self.prompt_len + request.stop.max_tokens, max_model_len + (not self.samples))
        self.stop_ids = request.stop.eos_token_ids | request.stop.stop_token_ids
        sampling = request.params
        self.reads_cache = request.reads_cache and sampling.prompt_logprobs is None
        self.needs_host = needs_host(sampling)
        self.streams = sampling.output_kind is not RequestOutputKind.FINAL_ONLY
        self.status = Status.WAITING
        self.digests = tuple([(each.feature, each.keys_digest) for each in request.attachments if each.keys_digest])
        self.parked = False  # in the waiting queue
        self.row = NO_ROW  # kept after the end of the row until the last step naming it has returned
        self.begins_at = 0  # tokens that were computed when it got its row
        self.num_cached = 0
        self.num_preemptions = 0
        self.made_way = False  # it was preempted once for another tenant, and will not be again
        self.first_scheduled_time = 0.0
        self.told_in = NOT_TOLD  # which message has all there is to say of it but tokens, as `Reconciler` counts them
        self.next_prompt_logprob = 1  # prompt tokens before this one have had their logprobs reported

    @property
    def has_no_news(self) -> bool:
        """It has no tokens but those that it came with."""
        return self.num_output_tokens == len(self.request.output_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_len
