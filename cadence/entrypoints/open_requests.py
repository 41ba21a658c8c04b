"""Requests of a front that runs on an event loop, from their way to the engine to the last output their readers get."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.update import AnyUpdate, RequestUpdate
from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.engine.supervise.engine_client import EngineClient
from cadence.engine.supervise.journal import JournalEntry
from cadence.engine.supervise.supervisor import entry_of
from cadence.engine.text.held_updates import TO_THE_END, HeldStream, HeldUpdates, Resumption, StreamPosition
from cadence.engine.text.output_processor import OutputProcessor, OutputStream
from cadence.engine.text.parallel_sampling import CompletionGroup, fan_out
from cadence.engine.text.text_tap import TextTap

logger = logging.getLogger("cadence.engine")

DELIVERED_AT_ONCE = 64  # updates: about 2 ms


class Submission:
    """A request as the engine gets it: as many as it has completions."""

    def __init__(self, request: EngineRequest, engine: int | None) -> None:
        """Raises, before n completions are made of it, for what cannot be sent. engine: as `ProcessedInput` has it"""
        whole = entry_of(request, engine)
        self.kind = request.params.output_kind
        self.children = fan_out(request)
        self.entries: list[JournalEntry] = [whole]
        if len(self.children) > 1:
            self.entries = [entry_of(child, engine) for child in self.children]


class Origin(NamedTuple):
    """What an open request is that its stream does not know."""

    seed: int
    core_ids: tuple[str, ...]  # in the order of the completions
    group: CompletionGroup


class OpenRequests:
    """By the user's id of each: the stream to its reader. `begin` opens one, and `finish` must follow."""

    def __init__(self, engines: EngineClient, outputs: OutputProcessor) -> None:
        self._engines = engines
        self._outputs = outputs
        self._streams: dict[str, OutputStream] = {}
        self._origins: dict[str, Origin] = {}
        self._resumptions: dict[str, Resumption] = {}  # of requests that will begin
        self._held: dict[str, HeldUpdates] = {}  # by the core's id, of completions that were read in part before
        self._idle = asyncio.Event()  # there are none, or the engine is dead
        self._idle.set()

    def __len__(self) -> int:
        return len(self._streams)

    def ids(self) -> list[str]:
        return list(self._streams)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def begin(
        self, request_id: str, submission: Submission, prompt: str | None, warnings: list[str], lora_request: object
    ) -> OutputStream:
        if request_id in self._streams:
            raise InvalidRequestError(f"request_id {request_id!r} is already running", "request_id")
        group = self._outputs.add(request_id, submission.children, prompt, warnings, lora_request)
        core_ids = tuple(child.request_id for child in submission.children)
        self._origins[request_id] = Origin(submission.children[0].seed, core_ids, group)
        stream = self._streams[request_id] = self._stream(request_id, core_ids, submission.kind)
        self._idle.clear()
        try:
            for entry in submission.entries:
                self._engines.submit(entry)
        except BaseException:
            self.finish(request_id)
            raise
        return stream

    def finish(self, request_id: str) -> None:
        """What still runs of it ends."""
        del self._streams[request_id]
        self._release(self._origins.pop(request_id).core_ids)
        if not self._streams:
            self._idle.set()
        self._drop(request_id)

    def replay(self, request: EngineRequest, stream: OutputStream) -> None:
        """The answer begins with tokens that it has already."""
        for output in self._outputs.replay(request.request_id, request.output_token_ids):
            stream.put(output)

    def abort(self, request_id: str) -> None:
        """The reader gets one last output."""
        stream = self._streams.get(request_id)
        for output in self._drop(request_id):
            if stream is not None:
                stream.put(output)

    def stream(self, request_id: str) -> OutputStream | None:
        return self._streams.get(request_id)

    def position(self, request_id: str) -> StreamPosition | None:
        """How far the reader of a request is; None = it is not open."""
        stream, origin = self._streams.get(request_id), self._origins.get(request_id)
        if stream is None or origin is None:
            return None
        shown, unread = self._outputs.num_shown(origin.group), stream.num_unread()
        read = {index: count - unread.get(index, 0) for index, count in shown.items()}
        ended = dict.fromkeys(origin.group.lengths.keys() - unread.keys(), TO_THE_END)
        return StreamPosition(origin.seed, {**read, **ended}, stream.is_waiting)

    def resume(self, request_id: str, resumption: Resumption) -> None:
        """The request of this id, when it begins, goes on where its reader was."""
        self._resumptions[request_id] = resumption

    def seeded(self, request_id: str, params: SamplingParams) -> SamplingParams:
        """With the seed that the request had before, if it is one that is resumed."""
        if request_id not in self._resumptions:
            return params
        params = params.clone()
        params.seed = self._resumptions[request_id].position.seed
        return params

    def tap(self, request_id: str, tap: TextTap) -> None:
        if stream := self._streams.get(request_id):
            stream.tap(tap)

    async def deliver(self, updates: Sequence[AnyUpdate]) -> None:
        """A large batch in parts: between them other tasks of the event loop run."""
        if self._held:
            updates = self._hold_back(updates)
        for number, update in enumerate(updates):
            if number and number % DELIVERED_AT_ONCE == 0:
                await asyncio.sleep(0)
            self._deliver(update)

    def _deliver(self, update: AnyUpdate) -> None:
        try:
            if self._outputs.put_text(update, self._streams):
                return
            outputs, stopped = self._outputs.process([update])
        except Exception:  # of one request's text: it fails alone
            logger.exception("an output could not be made into text")
            self._fail_one(update.request_id)
            return
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None and not stream.put(output):
                self._drop(output.request_id)
        if stopped:
            self._engines.drop(stopped)

    def _stream(self, request_id: str, core_ids: Sequence[str], kind: RequestOutputKind) -> OutputStream:
        resumption = self._resumptions.pop(request_id, None)
        if resumption is None or not resumption.position.read:
            return OutputStream(kind)
        held = HeldUpdates({core_id: resumption.position.read.get(i, 0) for i, core_id in enumerate(core_ids)})
        self._held |= dict.fromkeys(core_ids, held)

        async def release() -> None:
            await resumption.on_caught_up()
            self._release(core_ids)
            for update in held.take_later():
                self._deliver(update)

        return HeldStream(kind, release, is_behind=bool(held.core_ids))

    def _release(self, core_ids: Sequence[str]) -> None:
        if self._held:
            for core_id in core_ids:
                self._held.pop(core_id, None)

    def _hold_back(self, updates: Sequence[AnyUpdate]) -> list[AnyUpdate]:
        """-> those of other requests. What was read before is delivered at once, so that it is one output."""
        others: list[AnyUpdate] = []
        for update in updates:
            held = self._held.get(update.request_id)
            if held is None:
                others.append(update)
            else:
                for whole in held.take(update):
                    self._deliver(whole)
        return others

    def fail_all(self, error: Exception) -> None:
        self._idle.set()
        for stream in self._streams.values():
            stream.fail(error)

    def _fail_one(self, core_id: str) -> None:
        user_id = self._outputs.discard(core_id)
        if user_id in self._streams:
            self._streams[user_id].fail(RuntimeError("an output could not be made into text"))
        self._engines.drop([core_id])

    def _drop(self, request_id: str) -> list[RequestOutput]:
        """Ends what still runs of a request, here and in the engine. Nothing to do for one that is over."""
        ids = list(self._outputs.core_ids(request_id))
        if not ids:
            return []
        self._engines.drop(ids)
        outputs, _ = self._outputs.process([RequestUpdate.end(core_id, FinishReason.ABORT) for core_id in ids])
        return outputs
