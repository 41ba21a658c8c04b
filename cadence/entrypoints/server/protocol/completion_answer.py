"""A completion's answer in OpenAI's words: one object, or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.entrypoints.server.chat.events import Usage
from cadence.entrypoints.server.http.stream import ChunkEncoder, StartedStream
from cadence.entrypoints.server.protocol.logprobs import CompletionLogprobs, TokenNames, prompt_logprobs
from cadence.entrypoints.server.protocol.usage import NO_DETAILS, usage_object

_AROUND = (
    '"text":',
    ',"logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null',
)
# What vLLM has and this server has nothing to say about: there, but null.
_NO_ANSWER = dict.fromkeys(
    ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
)
_NO_CHOICE = dict.fromkeys(("prompt_logprobs", "routed_experts"))

Item = tuple[int, RequestOutput]  # which of the prompts, and its next output
Source = AsyncGenerator[Item, None] | StartedStream[Item]


@dataclass(frozen=True, slots=True)
class CompletionView:
    """What of an answer the client asked to see."""

    base: dict[str, Any]  # id, created, model, object
    names: TokenNames
    n: int  # completions per prompt
    echo: bool
    ids_given: bool  # the prompts are lists of ids
    silent: bool  # max_tokens 0: the one token the engine makes is not shown
    skip_special: bool
    logprobs: int | None  # None = none
    prompt_logprobs: bool
    token_ids: bool
    drafted: bool  # say which tokens were drafts
    include_usage: bool
    continuous_usage: bool
    usage_details: bool

    @property
    def plain(self) -> bool:
        """Whether most chunks hold nothing but text."""
        return self.logprobs is None and not (self.token_ids or self.drafted or self.continuous_usage or self.silent)


class TokenCounter:
    """Tokens of all prompts together. A prompt counts once, however many completions it has."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._prompts: dict[int, tuple[int, int]] = {}  # prompt -> its tokens, those of them from the cache
        self._completion = 0

    def add(self, prompt: int, output: RequestOutput) -> None:
        if output.finished or prompt not in self._prompts:  # what was cached is known for good at the end
            given = len(output.prompt_token_ids or ()) + len(output.encoder_prompt_token_ids or ())
            self._prompts[prompt] = (given, output.num_cached_tokens or 0)
        if not self._silent:
            for completion in output.outputs:
                self._completion += len(completion.token_ids)

    def add_tokens(self, count: int) -> None:
        self._completion += count

    def usage(self) -> Usage:
        total, cached = (sum(counts) for counts in zip(*self._prompts.values(), strict=True))
        return Usage(total, self._completion, cached)

    def prompt_tokens(self, prompt: int) -> int:
        return self._prompts[prompt][0]


class Choices:
    """From outputs to choices, in whatever pieces the outputs come."""

    def __init__(self, view: CompletionView) -> None:
        self._view = view
        self._begun: dict[int, CompletionLogprobs] = {}  # by index of the choice

    def is_new(self, index: int) -> bool:
        return index not in self._begun

    def choice(self, index: int, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        """The first piece of a choice also carries what was asked for of the prompt."""
        view = self._view
        new = self.is_new(index)
        if new:
            self._begun[index] = CompletionLogprobs(view.names, view.skip_special)
        silent = view.silent
        finish = completion.finish_reason
        choice: dict[str, Any] = {
            "index": index,
            "text": (self._echoed(output) if new else "") + ("" if silent else completion.text),
            "logprobs": self._logprobs(index, output if new else None, completion),
            "finish_reason": "length" if silent and finish else finish,
            "stop_reason": None if silent else completion.stop_reason,
            "prompt_token_ids": output.prompt_token_ids if new and view.token_ids else None,
            "token_ids": None,
        }
        if new and view.prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if view.token_ids:
            choice["token_ids"] = [] if silent else list(completion.token_ids)
        if view.drafted:
            choice["drafted"] = [] if silent else list(completion.drafted)
        return choice

    def _echoed(self, output: RequestOutput) -> str:
        return output.prompt or "" if self._view.echo else ""

    def _logprobs(
        self, index: int, begins: RequestOutput | None, completion: CompletionOutput
    ) -> dict[str, Any] | None:
        view = self._view
        if view.logprobs is None:
            return None
        ids, positions = ([], []) if view.silent else (list(completion.token_ids), list(completion.logprobs or ()))
        num_shown = 0
        if begins is not None and view.echo:
            prompt = begins.prompt_token_ids or ()
            ids = [*prompt, *ids]
            positions = [*(begins.prompt_logprobs or ()), *positions]
            num_shown = len(prompt) if view.ids_given else 0  # ids are echoed with their special tokens
        return self._begun[index].write(ids, positions, view.logprobs, num_shown)


class CompletionChunks:
    def __init__(self, view: CompletionView) -> None:
        self._view = view
        self._plain = view.plain
        self._writer = ChunkEncoder(view.base, _AROUND, view.include_usage)
        self._choices = Choices(view)
        self._counter = TokenCounter(view.silent)
        self._so_far: dict[int, int] = {}  # choice -> its tokens, where every chunk says how many

    async def write(self, source: Source) -> AsyncGenerator[bytes, None]:
        async with aclosing(source) as outputs:
            async for prompt, output in outputs:
                self._counter.add(prompt, output)
                for completion in output.outputs:
                    if chunk := self._chunk(prompt, output, completion):
                        yield chunk
        if self._view.include_usage:
            yield self._writer.usage(usage_object(self._counter.usage(), self._view.usage_details))

    def text_of(self, index: int, text: str, token_ids: Sequence[int]) -> bytes:
        """Of the only prompt, where the view is plain: what a choice that has begun says next."""
        self._counter.add_tokens(len(token_ids))
        return self._writer.text(index, text) if text else b""

    def _chunk(self, prompt: int, output: RequestOutput, completion: CompletionOutput) -> bytes:
        view = self._view
        index = prompt * view.n + completion.index
        if self._plain and completion.finish_reason is None and not self._choices.is_new(index):
            return self._writer.text(index, completion.text) if completion.text else b""
        choice = self._choices.choice(index, output, completion)
        if view.continuous_usage:
            self._so_far[index] = self._so_far.get(index, 0) + (0 if view.silent else len(completion.token_ids))
            so_far = Usage(self._counter.prompt_tokens(prompt), self._so_far[index], 0)
            return self._writer.choice(choice, usage=usage_object(so_far))
        return self._writer.choice(choice)


class CompletionAnswer:
    def __init__(self, view: CompletionView) -> None:
        self._view = view

    async def read(self, source: Source) -> dict[str, Any]:
        """Every output is a final one: all completions of its prompt."""
        view = self._view
        builder, counter = Choices(view), TokenCounter(view.silent)
        choices: list[dict[str, Any]] = []
        async with aclosing(source) as outputs:
            async for prompt, output in outputs:
                counter.add(prompt, output)
                for completion in output.outputs:
                    choice = builder.choice(prompt * view.n + completion.index, output, completion)
                    choices.append({**_NO_CHOICE, **choice})
        choices.sort(key=lambda choice: choice["index"])
        usage = usage_object(counter.usage(), view.usage_details)
        return {**_NO_ANSWER, **view.base, "choices": choices, "usage": {**NO_DETAILS, **usage}}
