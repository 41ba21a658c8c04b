"""A request that is run again for a reader who has read a part of its answer from a front that is gone.

The tokens of a request are the same in any run of it with the same seed, but not how many come at once. So what the
reader has read comes as one output, cut exactly where the reader was (`HeldUpdates`), and the rest follows when all
that was made of that output was passed on (`HeldStream`), where what was made of it can be left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from cadence.core.contract.update import AnyUpdate, RequestTokens, RequestUpdate
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.text.output_processor import OutputStream

TO_THE_END = -1


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """How far the reader of a request is."""

    seed: int  # of the request; of its first completion where there are several
    read: Mapping[int, int]  # tokens, by completion; TO_THE_END = all, and how it ended
    is_between: bool = False  # all that was read was passed on, and the next output is waited for


@dataclass(frozen=True, slots=True)
class Resumption:
    position: StreamPosition  # nothing is held back where it says of no completion how far that is
    on_caught_up: Callable[[], Awaitable[None]]  # called when all that was read before was passed on again


class HeldStream(OutputStream):
    """Its first output is what was read before."""

    def __init__(
        self, kind: RequestOutputKind, on_caught_up: Callable[[], Awaitable[None]], *, is_behind: bool
    ) -> None:
        """is_behind: something was read"""
        super().__init__(kind)
        self._on_caught_up = on_caught_up
        self._is_behind = is_behind
        self._is_caught_up = False

    async def next(self) -> RequestOutput:
        """Readers take an output when all of the last one was passed on."""
        if self._is_behind:
            self._is_behind = False
        elif not self._is_caught_up:
            self._is_caught_up = True
            await self._on_caught_up()
        return await super().next()


class HeldUpdates:
    """Of the completions of one request: what was read before, and what came after it."""

    def __init__(self, read: Mapping[str, int]) -> None:
        """read: as `StreamPosition`, by the core's request id"""
        self._missing = {core_id: count for core_id, count in read.items() if count}
        self._pieces: dict[str, list[AnyUpdate]] = {core_id: [] for core_id in self._missing}
        self._later: list[AnyUpdate] = []

    @property
    def core_ids(self) -> list[str]:
        """Of completions of which something was read."""
        return list(self._pieces)

    def take(self, update: AnyUpdate) -> list[RequestUpdate]:
        """-> one update per completion with all that was read, once that is complete; else none"""
        missing = self._missing.get(update.request_id, 0)
        if not missing:
            self._later.append(update)
            return []
        count = len(update.new_token_ids)
        if missing != TO_THE_END and count > missing:
            update, rest = _split(update, missing)
            self._later.append(rest)
        self._pieces[update.request_id].append(update)
        if missing != TO_THE_END:
            self._missing[update.request_id] = missing - len(update.new_token_ids)
        if update.finish_reason is not None or not self._missing[update.request_id]:
            del self._missing[update.request_id]
        return [] if self._missing else [_joined(pieces) for pieces in self._pieces.values()]

    def take_later(self) -> list[AnyUpdate]:
        later, self._later = self._later, []
        return later


def _split(update: AnyUpdate, count: int) -> tuple[AnyUpdate, AnyUpdate]:
    """After `count` tokens. The forwards that brought them are not told: a forward has no half."""
    first, rest = update.new_token_ids[:count], update.new_token_ids[count:]
    if isinstance(update, RequestTokens):
        return replace(update, new_token_ids=first), replace(update, new_token_ids=rest)
    before = replace(
        update,
        new_token_ids=first,
        logprobs=update.logprobs[:count],
        finish_reason=None,
        stop_reason=None,
        complete=False,
        runs=(),
    )
    after = replace(update, new_token_ids=rest, logprobs=update.logprobs[count:], prompt_logprobs=(), runs=())
    return before, after


def _joined(pieces: list[AnyUpdate]) -> RequestUpdate:
    """The first is whole: a request begins with one."""
    whole = [piece for piece in pieces if isinstance(piece, RequestUpdate)]
    return replace(
        whole[-1],
        new_token_ids=list(chain.from_iterable(piece.new_token_ids for piece in pieces)),
        logprobs=tuple(chain.from_iterable(piece.logprobs for piece in whole)),
        prompt_logprobs=tuple(chain.from_iterable(piece.prompt_logprobs for piece in whole)),
        runs=tuple(chain.from_iterable(piece.runs for piece in whole)),
    )
