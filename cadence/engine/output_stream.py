"""One request's outputs on their way to one reader. A slow reader gets fewer, larger outputs, and not without end."""

from __future__ import annotations

import asyncio

from cadence.core.errors import ReaderTooSlowError
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import RequestOutputKind

MAX_HELD = 2**18  # tokens and logprobs that wait for one reader


class OutputStream:
    def __init__(self, kind: RequestOutputKind, max_held: int = MAX_HELD) -> None:
        self._delta = kind is RequestOutputKind.DELTA
        self._max_held = max_held
        self._held = 0  # tokens and logprobs of the deltas that wait
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, output: RequestOutput) -> bool:
        """False when more waits than may: then the request must end, and its reader is told why."""
        if self._delta:
            self._held += sum(_size(completion) for completion in output.outputs)
        self._pending = output if self._pending is None else self._merged(self._pending, output)
        self._arrived.set()
        if self._held <= self._max_held or output.finished:
            return True
        self.fail(ReaderTooSlowError(f"more than {self._max_held} tokens and logprobs wait to be read"))
        return False

    def fail(self, error: Exception) -> None:
        self._error = error
        self._arrived.set()

    async def next(self) -> RequestOutput:
        """What has come since the last call; raises what the engine died of."""
        while self._pending is None:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        output, self._pending = self._pending, None
        self._held = 0
        return output

    def _merged(self, old: RequestOutput, new: RequestOutput) -> RequestOutput:
        known = {completion.index: completion for completion in old.outputs}
        for completion in new.outputs:
            before = known.get(completion.index)
            joined = _joined(before, completion) if self._delta and before is not None else completion
            known[completion.index] = joined
        new.outputs = [known[index] for index in sorted(known)]
        return new


def _size(completion: CompletionOutput) -> int:
    return len(completion.token_ids) + sum(len(position) for position in completion.logprobs or ())


def _joined(old: CompletionOutput, new: CompletionOutput) -> CompletionOutput:
    """Two deltas of one completion as one."""
    new.text = old.text + new.text
    new.token_ids = [*old.token_ids, *new.token_ids]
    if new.logprobs is not None:
        new.logprobs = [*(old.logprobs or ()), *new.logprobs]
    return new
