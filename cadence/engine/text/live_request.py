"""A request whose prompt grows while it is answered: what it has so far, and what its reader sees of it.

It is a chain of ordinary engine requests, one after the other; which comes next is `live_input.py`'s business.

    open chunks   arrived since the last token: they are the end of the prompt of the engine request that runs
    answered      the prompt of an engine request that wrote tokens, and these tokens

A chunk arrives         while                          then
                        nothing was written yet        it joins the open chunks: one prompt, as if it had been whole
                        tokens are being written       prompt and tokens are answered; it is the first open chunk
                        the request waits for input    the same

What was answered is found again by the prefix cache, so that of it at most a block is computed anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import AUDIO
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.engine.text.prompt_media import AudioClip, MediaList
from cadence.engine.text.prompts import ParsedPrompt, PromptType, parse_prompt


@dataclass(frozen=True, slots=True)
class StreamingInput:
    """The next part of a prompt. Its sampling_params hold from here on; None = those that held before."""

    prompt: PromptType
    sampling_params: SamplingParams | None = None


LiveChunk = StreamingInput | PromptType
LiveInput = AsyncIterable[LiveChunk]


class EncodesText(Protocol):
    async def __call__(self, text: str, add_special_tokens: bool) -> list[int]: ...


class LiveRequest:
    def __init__(self, request_id: str, params: SamplingParams) -> None:
        self.request_id = request_id
        self.params = params
        self.num_chunks = 0
        self._kind = params.output_kind
        self._open: list[ParsedPrompt] = []
        self._first = ParsedPrompt(None, [])  # the first chunk: its salt, its tenant and its engine are the request's
        self._answered: list[int] = []  # token ids, with placeholders of media as they were given
        self._media: MediaList | None = None
        self._sent: list[int] = []  # the prompt of the newest engine request, as `_answered`
        self._texts: list[str] | None = []  # of all chunks; None where one came as token ids
        self._prompt_ids: list[int] = []  # of all chunks that were answered; tokens of media included
        self._num_before = 0  # tokens of prompt and output before the open chunks; tokens of media included
        self._before = Written()  # by the engine requests that are over
        self._now = Written()  # by the newest one
        self._last: RequestOutput | None = None
        self._check_params(params)

    @property
    def has_open(self) -> bool:
        """Whether chunks wait to be answered."""
        return bool(self._open)

    @property
    def num_written(self) -> int:
        """By the newest engine request."""
        return len(self._now.token_ids)

    @property
    def is_delta(self) -> bool:
        return self._kind is RequestOutputKind.DELTA

    def append(self, chunk: Any) -> None:
        self.num_chunks += 1
        with self.naming_chunk():
            given = chunk if isinstance(chunk, StreamingInput) else StreamingInput(chunk)
            params = given.sampling_params
            if params is not None:
                self._check_params(params)
                self.params = params
            parsed = parse_prompt(given.prompt)
            self._take_media(parsed)
            if self.num_chunks == 1:
                self._first = parsed
            self._open.append(parsed)
            self._texts = None if self._texts is None or parsed.text is None else [*self._texts, parsed.text]

    def naming_chunk(self) -> NamesChunk:
        """`with` it, an error about a request says after which of its chunks it arose."""
        return NamesChunk(self.num_chunks)

    async def prompt(self, encode: EncodesText) -> ParsedPrompt:
        """Of the next engine request. Texts that follow one another are one text; one that follows tokens has no
        special tokens."""
        token_ids, text = list(self._answered), ""
        for part in [*self._open, ParsedPrompt(None, [])]:
            if part.token_ids is None:
                text += part.text or ""
                continue
            if text:
                token_ids += await encode(text, not token_ids)
                text = ""
            token_ids += part.token_ids
        self._sent = token_ids
        text_so_far = None if self._texts is None else "".join(self._texts)
        return replace(self._first, text=text_so_far, token_ids=list(token_ids), source=self._media)

    def shown(self, output: RequestOutput, ends: bool) -> RequestOutput | None:
        """What the reader sees of an output of the newest engine request; None = nothing. ends: whether it is the
        last of the whole request."""
        (completion,) = output.outputs
        is_news = bool(completion.token_ids or completion.text or not self.is_delta)
        self._now.accept(completion, self.is_delta)
        prompt_ids = [*self._prompt_ids, *(output.prompt_token_ids or [])[self._num_before :]]
        self._last = self._made(output, completion, prompt_ids)
        if ends or (is_news and self._kind is not RequestOutputKind.FINAL_ONLY):
            return self._finished(self._last) if ends else _unfinished(self._last)
        return None

    def close_answer(self) -> None:
        """The newest engine request is over; what it wrote is a part of the prompt from now on. Where it wrote nothing
        its chunks stay open."""
        if not self._now.token_ids or self._last is None:
            return
        self._open = []
        self._answered = [*self._sent, *self._now.token_ids]
        whole = len(self._last.prompt_token_ids or []) - len(self._prompt_ids)  # of the chunks it answered
        self._prompt_ids = list(self._last.prompt_token_ids or [])
        self._num_before += whole + len(self._now.token_ids)
        self._before, self._now = self._before.plus(self._now), Written()

    def last(self, reason: str | None = None) -> RequestOutput:
        """The output that ends the request, where none of an engine request does. reason: None = as the newest engine
        request ended"""
        if self._last is None:
            completion = CompletionOutput(0, "", [], finish_reason=reason or "abort")
            return RequestOutput(self.request_id, None, [], None, [completion], True)
        (completion,) = self._last.outputs
        if reason is not None:
            completion = replace(completion, finish_reason=reason, stop_reason=None)
        if self.is_delta:
            completion = replace(completion, text="", token_ids=[], drafted=(), logprobs=completion.logprobs and [])
        return self._finished(replace(self._last, outputs=[completion]))

    def _made(self, output: RequestOutput, completion: CompletionOutput, prompt_ids: list[int]) -> RequestOutput:
        if not self.is_delta:
            completion = self._before.plus(self._now).on(completion)
        text = None if self._texts is None else "".join(self._texts)
        return replace(
            output, request_id=self.request_id, prompt=text, prompt_token_ids=prompt_ids, outputs=[completion]
        )

    def _finished(self, output: RequestOutput) -> RequestOutput:
        output.finished = True
        return output

    def _check_params(self, params: Any) -> None:
        if not isinstance(params, SamplingParams):
            name = type(params).__name__
            raise InvalidRequestError(f"sampling_params must be SamplingParams, not {name}", "sampling_params")
        if params.n != 1:
            raise InvalidRequestError(f"n must be 1 where the input is live; got {params.n}", "n")
        if params.prompt_logprobs is not None:
            message = "prompt_logprobs cannot be used where the input is live: the prompt has no end"
            raise InvalidRequestError(message, "prompt_logprobs")
        if params.output_kind is not self._kind:
            raise InvalidRequestError("output_kind must be the same for all chunks", "output_kind")

    def _take_media(self, parsed: ParsedPrompt) -> None:
        source = parsed.source
        if source is None:
            return
        if isinstance(source, AudioClip):
            source = MediaList({AUDIO: [(source.samples, source.rate)]})
        if not isinstance(source, MediaList) or source.vectors is not None:
            message = "a chunk is a text or token ids, with pictures, videos or sounds beside them"
            raise InvalidRequestError(message, "prompt")
        self._media = source if self._media is None else _joined(self._media, source)


class Written:
    """What engine requests wrote."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[Any] | None = None
        self.cumulative: float | None = None

    def accept(self, new: CompletionOutput, is_delta: bool) -> None:
        """is_delta: `new` is what came since the last time, and not all"""
        if not is_delta:
            self.text, self.token_ids = "", []
            self.logprobs = None
        self.text += new.text
        self.token_ids += new.token_ids
        self.cumulative = new.cumulative_logprob
        if new.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *new.logprobs]

    def plus(self, later: Written) -> Written:
        both = Written()
        both.text, both.token_ids = self.text + later.text, self.token_ids + later.token_ids
        if self.logprobs is not None or later.logprobs is not None:
            both.logprobs = [*(self.logprobs or ()), *(later.logprobs or ())]
        if self.cumulative is not None or later.cumulative is not None:
            both.cumulative = (self.cumulative or 0.0) + (later.cumulative or 0.0)
        return both

    def on(self, completion: CompletionOutput) -> CompletionOutput:
        return replace(
            completion,
            text=self.text,
            token_ids=list(self.token_ids),
            logprobs=self.logprobs,
            cumulative_logprob=self.cumulative,
        )


class NamesChunk:
    """An `InvalidRequestError` inside of it says which chunk it is about."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidRequestError) and not str(error).startswith("chunk "):
            raise InvalidRequestError(f"chunk {self._number}: {error}", error.field, error.reason) from error


def _unfinished(output: RequestOutput) -> RequestOutput:
    """A reader who has it may keep it, so it is not changed later."""
    (completion,) = output.outputs
    hidden = replace(completion, finish_reason=None, stop_reason=None)
    return replace(output, outputs=[hidden], finished=False)


def _joined(first: MediaList, second: MediaList) -> MediaList:
    """Media of both, in the order of their placeholders."""
    kinds: Sequence[str] = [*first.by_kind, *(kind for kind in second.by_kind if kind not in first.by_kind)]
    by_kind: dict[str, list[Any]] = {}
    uuids: dict[str, list[str | None]] = {}
    for kind in kinds:
        parts = [(media, media.by_kind.get(kind, [])) for media in (first, second)]
        by_kind[kind] = [each for _, given in parts for each in given]
        if any(kind in media.uuids for media, _ in parts):
            uuids[kind] = [name for media, given in parts for name in media.uuids.get(kind, [None] * len(given))]
    return MediaList(by_kind, uuids=uuids, processor={**first.processor, **second.processor})
