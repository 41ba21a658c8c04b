"""The tokens that rows which wait may get next, for the mail."""

from __future__ import annotations

import numpy as np

from cadence.core.contract.step import IntArray
from cadence.core.contract.token_masks import TokenMasks
from cadence.core.contract.update import RequestUpdate
from cadence.scheduler.features.grammar.output import end_of_output, output_of
from cadence.scheduler.news import news_of
from cadence.scheduler.request_state import RequestState, Status

_ANY = -1  # all bits of a word


def write_masks(requests: list[RequestState]) -> tuple[TokenMasks, list[RequestUpdate]]:
    """For rows of which all tokens are known, in plan order -> their masks, one for each line, and the ends of requests
    that no token can follow. Those that have ended get any token: it is never read."""
    outputs = [output_of(request) for request in requests]
    counts = [1 + len(output.drafts) for output in outputs]
    words_np = np.full((sum(counts), outputs[0].constraint.num_words), _ANY, dtype=np.int32)
    ended, first = [], 0
    for request, count in zip(requests, counts, strict=True):
        if request.status is not Status.FINISHED:
            masks_np = words_np[first : first + count]
            _fill(request, masks_np)
            end = _end_of(request, masks_np[0])
            if end is not None:
                masks_np[:] = _ANY
                ended.append(end)
        first += count
    rows_np = np.array([request.row for request in requests], dtype=np.int32)
    return TokenMasks(np.repeat(rows_np, counts), words_np), ended


def _fill(request: RequestState, masks_np: IntArray) -> None:
    """masks [1 + drafts, words]: of the next token, and after each draft. After one that may not come, nothing is
    read: it is not what will be chosen in its place. Where no token can follow any is chosen: the host will see it."""
    output, accepted = output_of(request), 0
    constraint = output.constraint
    constraint.fill(masks_np[0])
    for draft, mask_np in zip(output.drafts, masks_np[1:], strict=True):
        if not constraint.accept(draft):
            break
        accepted += 1
        constraint.fill(mask_np)
        if _is_closed(request, mask_np, request.num_output_tokens + accepted):
            mask_np[:] = _ANY
    constraint.rollback(accepted)


def _end_of(request: RequestState, mask_np: IntArray) -> RequestUpdate | None:
    """Its end, if no token can follow."""
    if not _is_closed(request, mask_np, request.num_output_tokens):
        return None
    update = news_of(request, [])
    update.finish_reason, update.stop_reason = end_of_output(request)
    return update


def _is_closed(request: RequestState, mask_np: IntArray, num_output_tokens: int) -> bool:
    """No token can follow so many: the output is complete, and may not be ended by a stop token yet, or at all."""
    if num_output_tokens < request.request.stop.min_tokens:
        mask_np = mask_np.copy()
        _clear(mask_np, request.stop_ids)
    return not mask_np.any()


def _clear(mask_np: IntArray, tokens: frozenset[int]) -> None:
    words_np = mask_np.view(np.uint32)
    for token in tokens:
        if token // 32 < len(words_np):
            words_np[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
