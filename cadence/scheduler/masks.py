"""The tokens that rows which wait may get next, for the mail."""

from __future__ import annotations

import numpy as np

from cadence.core.failure import Failure, FailureCode
from cadence.core.request import FinishReason
from cadence.core.step import IntArray, TokenMasks
from cadence.core.update import RequestUpdate
from cadence.scheduler.request_state import RequestState, Status
from cadence.scheduler.rows import RowTable
from cadence.scheduler.update import news_of

_ANY = -1  # all bits of a word


class MaskWriter:
    def __init__(self, rows: RowTable) -> None:
        self._rows = rows

    def write(self, waiting: list[int]) -> tuple[TokenMasks, list[RequestUpdate]]:
        """For rows of which all tokens are known -> their masks, and the ends of requests that no token can follow.
        Those that have ended get any token: nobody reads it."""
        requests = [self._rows.requests[row] for row in waiting]
        words_np = np.full((len(waiting), requests[0].constraint.num_words), _ANY, dtype=np.int32)
        ended = []
        for request, mask_np in zip(requests, words_np, strict=True):
            if request.status is Status.FINISHED:
                continue
            request.constraint.fill(mask_np)
            end = _end_of(request, mask_np)
            if end is not None:
                mask_np[:] = _ANY
                ended.append(end)
        return TokenMasks(np.array(waiting, dtype=np.int32), words_np), ended


def _end_of(request: RequestState, mask_np: IntArray) -> RequestUpdate | None:
    """Its end, if no token can follow: the output is complete and may not be ended by a stop token yet, or at all."""
    stop = request.request.stop
    closed_np = mask_np
    if request.num_output_tokens < stop.min_tokens:
        closed_np = mask_np.copy()
        _clear(closed_np, request.stop_ids)
    if closed_np.any():
        return None
    update = news_of(request, [])
    error = request.constraint.error
    update.finish_reason = FinishReason.ERROR if error else FinishReason.STOP
    update.stop_reason = Failure(FailureCode.BAD_GRAMMAR, error) if error else None
    return update


def _clear(mask_np: IntArray, tokens: frozenset[int]) -> None:
    words_np = mask_np.view(np.uint32)
    for token in tokens:
        if token // 32 < len(words_np):
            words_np[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
