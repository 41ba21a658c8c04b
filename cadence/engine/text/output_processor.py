"""From the core's updates to what users see, and from there to one reader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.update import AnyUpdate, RequestTokens, RequestUpdate
from cadence.core.errors import ReaderTooSlowError
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.metrics.by_engine import MetricsByEngine
from cadence.engine.text.logprobs import LogprobNames
from cadence.engine.text.parallel_sampling import CompletionGroup
from cadence.engine.text.pooled_request import PooledRequest
from cadence.engine.text.request_text import RequestText
from cadence.engine.text.text_tap import NO_TAP, TextTap
from cadence.text.null_tokenizer import AnyTokenizer, NullTokenizer

MAX_HELD = 2**18  # tokens and logprobs that wait for one reader


class OutputProcessor:
    def __init__(self, tokenizer: AnyTokenizer, metrics: MetricsByEngine) -> None:
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._names = LogprobNames(tokenizer)
        self._no_names = LogprobNames(NullTokenizer())  # for requests that want no text
        self._texts: dict[str, RequestText] = {}  # by the core's request id (one per completion)
        self._groups: dict[str, CompletionGroup] = {}  # by the core's request id
        self._children: dict[str, list[str]] = {}  # by the user's request id
        self._pooled: dict[str, PooledRequest] = {}  # those without tokens; the user's id is the core's

    def add(
        self,
        user_id: str,
        children: list[EngineRequest],
        prompt: str | None,
        warnings: Sequence[str] = (),
        lora_request: object = None,
    ) -> CompletionGroup:
        """lora_request: what outputs say of it, as it was given"""
        kind = children[0].params.output_kind
        group = CompletionGroup(user_id, len(children), kind, list(warnings), lora_request)
        if not children[0].samples:
            self.add_pooled(children[0], prompt, warnings, lora_request)
            return group
        self._children[user_id] = [child.request_id for child in children]
        for index, child in enumerate(children):
            self._texts[child.request_id] = RequestText(child, prompt, index, self._tokenizer)
            self._groups[child.request_id] = group
        return group

    def add_pooled(
        self, request: EngineRequest, prompt: str | None, warnings: Sequence[str], lora_request: object
    ) -> None:
        """One without tokens."""
        self._pooled[request.request_id] = PooledRequest(request, prompt, list(warnings), lora_request)

    def num_shown(self, group: CompletionGroup) -> dict[int, int]:
        """Tokens of each completion of a request that outputs were made of."""
        texts = [self._texts[core_id] for core_id in self._children.get(group.request_id, [])]
        return {**group.lengths, **{text.index: text.num_shown for text in texts}}

    def put_text(self, update: AnyUpdate, streams: Mapping[str, OutputStream]) -> bool:
        """Where nothing but text comes of an update, and its stream has a tap for it, puts it there; else does nothing.
        streams: by the user's request id. -> whether it did"""
        text = self._texts.get(update.request_id)
        if text is None or not text.is_only_text(update):
            return False
        stream = streams.get(self._groups[update.request_id].request_id)
        if stream is None or not stream.is_tapped:
            return False
        said = text.accept_text(update)
        self._metrics.tokens(text, update)
        stream.put_text(text.index, said, update.new_token_ids)
        return True

    def process(self, updates: Sequence[AnyUpdate]) -> tuple[list[RequestOutput], list[str]]:
        """Outputs to show, and the core's ids of requests that a stop string ended (the core must drop them)."""
        outputs: list[RequestOutput] = []
        stopped: list[str] = []
        pooled: list[PooledRequest] = []
        for update in updates:
            text = self._texts.get(update.request_id)
            if text is None:  # it has no text, or was ended by a stop string while this token was on its way
                if update.finish_reason is not None and update.request_id in self._pooled:
                    pooled.append(self._pooled.pop(update.request_id))
                    outputs.append(pooled[-1].end(update))
                continue
            if isinstance(update, RequestTokens):
                update = text.whole(update)
            text.accept(update, self._names if text.detokenizes else self._no_names)
            self._metrics.tokens(text, update)
            if text.finish_reason is not None and update.finish_reason is None:
                stopped.append(update.request_id)
            if text.wants_output():
                output = self._groups[update.request_id].output(text)
                outputs.extend([output] if output is not None else [])
            if text.finish_reason is not None:
                self._forget(text)
        self._metrics.pooled_finished(pooled)
        return outputs, stopped

    def replay(self, core_id: str, token_ids: Sequence[int]) -> list[RequestOutput]:
        """Tokens that another front has counted."""
        if core_id in self._pooled:
            return []
        text = self._texts[core_id]
        text.accept(RequestUpdate.tokens(core_id, token_ids), self._names)
        output = self._groups[core_id].output(text) if text.wants_output() else None
        return [] if output is None else [output]

    def core_ids(self, user_id: str) -> list[str]:
        """Ids under which the core still runs a user's request; empty when it is unknown or over."""
        return [user_id] if user_id in self._pooled else self._children.get(user_id, [])

    def discard(self, core_id: str) -> str:
        """Forgets a request that could not be made into text. -> the user's id of it"""
        if self._pooled.pop(core_id, None) is not None:
            return core_id
        self._texts.pop(core_id, None)
        user_id = self._groups.pop(core_id).request_id
        self._leave(user_id, core_id)
        return user_id

    def num_unfinished(self) -> int:
        return len(self._children) + len(self._pooled)

    def _forget(self, text: RequestText) -> None:
        self._metrics.finished(text)
        group = self._groups.pop(text.request_id)
        del self._texts[text.request_id]
        if group.is_last(text):
            self._metrics.group_finished(text.engine, group.count, group.longest)
        self._leave(group.request_id, text.request_id)

    def _leave(self, user_id: str, core_id: str) -> None:
        self._children[user_id].remove(core_id)
        if not self._children[user_id]:
            del self._children[user_id]


class OutputStream:
    """One request's outputs on their way to one reader. A slow one gets fewer, larger outputs, and not without end."""

    def __init__(self, kind: RequestOutputKind, max_held: int = MAX_HELD) -> None:
        self._delta = kind is RequestOutputKind.DELTA
        self._max_held = max_held
        self._held = 0  # tokens and logprobs of the deltas that wait
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        self._arrived = asyncio.Event()
        self._is_waiting = False  # the reader, for what comes next
        self._tap: TextTap = NO_TAP

    def tap(self, tap: TextTap) -> None:
        """tap: gets text that the reader waits for, instead of the reader"""
        self._tap = tap

    @property
    def is_tapped(self) -> bool:
        """Whether the next text goes to the tap: all before it was read."""
        return self._is_waiting and self._pending is None and self._error is None and self._tap.is_ready

    @property
    def is_waiting(self) -> bool:
        """The reader waits for what comes next, or has not yet seen that it came."""
        return self._is_waiting

    def num_unread(self) -> dict[int, int]:
        """Tokens of each completion that has some for the reader, or its end."""
        pending = self._pending
        return {} if pending is None else {one.index: len(one.token_ids) for one in pending.outputs}

    def put_text(self, index: int, text: str, token_ids: Sequence[int]) -> None:
        """To the tap. Where that fails the reader, which waits, is told, and ends the request."""
        try:
            self._tap.put(index, text, token_ids)
        except Exception as error:
            self.fail(error)

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
            self._is_waiting = True
            try:
                await self._arrived.wait()
            finally:
                self._is_waiting = False
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
    new.drafted = [*old.drafted, *(len(old.token_ids) + place for place in new.drafted)]
    new.token_ids = [*old.token_ids, *new.token_ids]
    if new.logprobs is not None:
        new.logprobs = [*(old.logprobs or ()), *new.logprobs]
    return new
