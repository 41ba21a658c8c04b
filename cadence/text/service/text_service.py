"""Text work for an event loop that must not wait: what is short is done at once, as long as one turn of the loop does
not do much of it; what is not in a thread (by calls that release the GIL); and what is long or not to be trusted in a
process of its own, with limits on time and memory.

Two processes, each started when first needed: one for long texts, one for templates that come with requests, so that a
template that runs to its limit delays no other request's text. While the first is busy, the second renders long chats,
if it is idle: what cannot fit the context is refused at once, and does not wait for other texts to be tokenised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from cadence.config.engine_config import TokenizerConfig
from cadence.core.errors import InvalidRequestError, TemplateError
from cadence.text.chat_template import ChatRequest
from cadence.text.chats import Chats, chats_for
from cadence.text.service.loop_share import LoopShare, LoopTurns
from cadence.text.service.text_client import JobError, TextProcess
from cadence.text.service.text_jobs import (
    ALL,
    Decode,
    Decoded,
    Encode,
    Encoded,
    Failed,
    Job,
    Kept,
    LoadTokenizer,
    RenderChat,
    packed,
    unpacked,
)
from cadence.text.tokenizer import SHORT_TEXT, Tokenizer

LONG_TEXT = 65_536  # characters: about 0.2 s and 20 MB; longer ones go to the process
IDS_PER_CHAR = 4  # token ids are decoded faster than characters are encoded
LONG_IDS = 65_536
THREADS = 2

LEAST_S = 5.0  # to tokenise or detokenise
S_PER_CHAR = 20e-6  # five times what the slowest texts take
MAX_TOKENS = 1_000_000  # that a process gives back at once
MAX_BYTES = 32 * 2**20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TextLimits:
    """What one job of a process may take."""

    memory_bytes: int = 2**30
    template_s: float = 10.0  # for a template that came with a request
    text_s: float = 30.0  # for the longest text

    def seconds_for(self, count: int) -> float:
        return min(self.text_s, LEAST_S + count * S_PER_CHAR)


@dataclass(frozen=True, slots=True)
class TextTokens:
    text: str
    ids: list[int]
    total: int  # tokens before the cut


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a text becomes tokens. `kept` cuts them to a slice; without a cut, text that cannot fit is refused."""

    add_special_tokens: bool = True
    kept: Kept = ALL
    field: str = "prompt"  # that holds the text, for errors

    @property
    def is_cut(self) -> bool:
        return self.kept != ALL


PLAIN = Encoding()


class TextService:
    def __init__(
        self,
        tokenizer: Tokenizer,
        config: TokenizerConfig,
        max_model_len: int,
        limits: TextLimits = TextLimits(),  # noqa: B008 (frozen)
    ) -> None:
        files = config.files
        gguf = "" if files.gguf is None else str(files.gguf)
        escape = config.escape_control_tokens
        load = LoadTokenizer(files.name, str(files.directory), gguf, escape, limits.memory_bytes, config.mode)
        self._limits = limits
        self._tokenizer = tokenizer
        self._chats: Chats = chats_for(tokenizer, escape)
        self._max_model_len = max_model_len
        self._max_tokens = max(MAX_TOKENS, max_model_len)
        self._threads = ThreadPoolExecutor(THREADS, "text")
        self._share = LoopShare(SHORT_TEXT)
        self.turns = LoopTurns()  # of chats that begin
        self._texts = TextProcess(load)
        self._templates = TextProcess(load)
        _ = tokenizer.bound  # takes a moment, which no request should wait for

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def loaded(self) -> TextService:
        """Itself; refused where there is no tokenizer."""
        return self

    async def encode(self, text: str, how: Encoding = PLAIN) -> TextTokens:
        if not how.is_cut:
            self._tokenizer.check_fits(text, self._max_model_len, how.field)
        if len(text) > LONG_TEXT:
            job = Encode(text, how.add_special_tokens, how.kept, self._max_tokens, self._limits.seconds_for(len(text)))
            encoded = await self._run(self._texts, job, how.field)
            assert isinstance(encoded, Encoded)
            return TextTokens(text, unpacked(encoded.ids), encoded.total)
        ids = await self.off_loop(len(text), lambda: self._tokenizer.encode(text, how.add_special_tokens))
        return TextTokens(text, ids[slice(*how.kept)], len(ids))

    async def offsets(self, text: str, ids: list[int], add_special_tokens: bool) -> list[tuple[int, int]] | None:
        """Where each of `ids` lies in `text`; None where they are not its tokens, and for a long one."""
        if len(text) > LONG_TEXT:
            return None
        own, places = await self.off_loop(len(text), lambda: self._tokenizer.offsets(text, add_special_tokens))
        return places if own == ids else None

    async def decode(self, ids: list[int], skip_special_tokens: bool = True, field: str = "tokens") -> str:
        if len(ids) > LONG_IDS:
            job = Decode(packed(ids), skip_special_tokens, MAX_BYTES, self._limits.seconds_for(len(ids)))
            decoded = await self._run(self._texts, job, field)
            assert isinstance(decoded, Decoded)
            return decoded.text
        size = len(ids) // IDS_PER_CHAR
        return await self.off_loop(size, lambda: self._tokenizer.decode(ids, skip_special_tokens))

    def check_template(self, template: str) -> None:
        """Raises ConfigError where the template cannot be used."""
        self._chats.check_template(template)

    async def chat(self, chat: ChatRequest, how: Encoding, template: str, trusted: bool) -> TextTokens:
        """The prompt a conversation becomes. `template`: the server's ("" = the model's own), or not to be trusted."""
        if not trusted:
            job = self._chat_job(chat, how, template, self._limits.template_s)
            return _text_tokens(await self._run(self._templates, job, "chat_template"))
        try:
            return await self._trusted_chat(chat, how, template)
        except InvalidRequestError as error:
            if error.field != "chat_template":
                raise
            # The client did not send the template: what goes on inside is not for it to know.
            raise TemplateError(f"the chat template cannot write these {how.field}", how.field) from error

    async def _trusted_chat(self, chat: ChatRequest, how: Encoding, template: str) -> TextTokens:
        size = _weight((chat.messages, chat.tools, chat.kwargs), LONG_TEXT)
        if size > LONG_TEXT:
            return await self._long_chat(chat, how, template)
        rendered, text = await self.off_loop(size, lambda: self._render(chat, template))
        if not how.is_cut:
            self._tokenizer.check_fits(text, self._max_model_len, how.field)
        if len(text) > LONG_TEXT:  # a template that makes much of little
            return await self._long_chat(chat, how, template)
        encode = lambda: self._chats.encode(rendered, how.add_special_tokens)  # noqa: E731
        ids = await self.off_loop(len(text), encode)
        return TextTokens(text, ids[slice(*how.kept)], len(ids))

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Text work, in a thread where it takes longer than the event loop should wait. `size`: in characters."""
        if self._share.take(size):
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def close(self) -> None:
        await self._texts.close()
        await self._templates.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _render(self, chat: ChatRequest, template: str) -> tuple[str, str]:
        rendered = self._chats.render(chat, template)
        return rendered, self._chats.text(rendered)

    async def _long_chat(self, chat: ChatRequest, how: Encoding, template: str) -> TextTokens:
        job = self._chat_job(chat, how, template, self._limits.text_s)
        if not how.is_cut and self._texts.is_busy and not self._templates.is_busy:
            await self._run(self._templates, msgspec.structs.replace(job, check_only=True), how.field)
        return _text_tokens(await self._run(self._texts, job, how.field))

    def _chat_job(self, chat: ChatRequest, how: Encoding, template: str, seconds: float) -> RenderChat:
        return RenderChat(
            chat=_chat_json(chat),
            template=template,
            add_special_tokens=how.add_special_tokens,
            kept=how.kept,
            max_tokens=self._max_tokens,
            field=how.field,
            context=0 if how.is_cut else self._max_model_len,
            seconds=seconds,
        )

    async def _run(self, process: TextProcess, job: Job, field: str) -> Encoded | Decoded:
        try:
            answer = await process.run(job)
        except JobError as error:
            raise InvalidRequestError(f"{field} {error}", field) from None
        if isinstance(answer, Failed):
            raise InvalidRequestError(answer.message, field if answer.field in ("", "prompt") else answer.field)
        return answer


def _text_tokens(encoded: Encoded | Decoded) -> TextTokens:
    assert isinstance(encoded, Encoded)
    return TextTokens(encoded.text, unpacked(encoded.ids), encoded.total)


def _chat_json(chat: ChatRequest) -> bytes:
    fields = {name: getattr(chat, name) for name in ChatRequest.__dataclass_fields__}
    try:
        return msgspec.json.encode(fields)
    except (UnicodeError, TypeError, RecursionError):
        raise InvalidRequestError("messages hold what is not JSON", "messages") from None


def _weight(value: Any, limit: int) -> int:
    """Characters and items of what JSON can hold, counted until there are more than `limit`."""
    total = 0
    todo = [value]
    while todo and total <= limit:
        item = todo.pop()
        total += len(item) if isinstance(item, str) else 8
        if isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            todo += item
    return total
