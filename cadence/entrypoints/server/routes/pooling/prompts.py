"""Texts, ids and conversations as the tokens of which values are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from cadence.config.pooling import TextForm
from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.protocol.pooling.fields import MAX_TOKENS, PooledBody, PooledFields
from cadence.entrypoints.server.routes.rendered_chat import conversation_tokens
from cadence.entrypoints.server.routes.state import ServerState
from cadence.text.chat_template import ChatRequest
from cadence.text.service.null_text_service import NullTextService
from cadence.text.service.text_jobs import ALL, Kept
from cadence.text.service.text_service import Encoding, TextService, TextTokens
from cadence.text.text_frame import TextFrame, longest_first


@dataclass(frozen=True, slots=True)
class NamedPrompt:
    token_ids: list[int]
    where: str  # the field that holds it, for errors
    second_from: int = 0  # the position of a second text, where the model tells two apart


@dataclass(frozen=True, slots=True)
class TokenCut:
    """What becomes of a text with too many tokens."""

    limit: int = 0  # tokens that are kept; 0 = it is refused
    side: str = "right"  # where tokens are cut off

    @classmethod
    def of(cls, body: PooledFields, max_model_len: int) -> TokenCut:
        limit, field = body.truncate_prompt_tokens, "truncate_prompt_tokens"
        if limit is None:
            return cls()
        if limit == 0:
            raise InvalidRequestError(f"{field} must be -1 or at least 1", field)
        if limit > max_model_len:
            message = f"{field} is {limit}, and this model takes at most {max_model_len} tokens"
            raise InvalidRequestError(message, field)
        return cls(max_model_len if limit < 0 else limit, body.truncation_side or "right")

    def kept(self, room: int) -> Kept:
        if not self.limit:
            return ALL
        return (-room, None) if self.side == "left" else (None, room)

    def shortened(self, ids: list[int], size: int) -> list[int]:
        return ids[slice(*self.kept(size))] if size else []

    def room(self, frame: TextFrame) -> int:
        """What special tokens leave of the limit."""
        room = self.limit - frame.size
        if self.limit and room < 1:
            message = f"truncate_prompt_tokens is {self.limit}, of which {frame.size} are special tokens"
            raise InvalidRequestError(message, "truncate_prompt_tokens")
        return room


class PooledTexts:
    """Makes tokens of texts, by the model's tokenizer and under the request's cut. Special tokens are never cut."""

    def __init__(self, cut: TokenCut, texts: TextService | NullTextService, form: TextForm) -> None:
        """form: of every text that stands alone"""
        self._cut = cut
        self._texts = texts
        self._form = form
        self._frames: dict[int, TextFrame] = {}  # by number of texts

    async def tokens(self, given: str | list[int], special: bool, where: str) -> list[int]:
        cut = self._cut
        if not isinstance(given, str):
            return given[slice(*cut.kept(cut.limit))]
        given = self._form.of(given)
        if not cut.limit:
            return (await self._encode(given, special, ALL, where)).ids
        frame = self._frame(1) if special else TextFrame()
        return frame.joined((await self._encode(given, False, cut.kept(cut.room(frame)), where)).ids)

    async def pair(self, pair: tuple[str, str], where: tuple[str, str]) -> NamedPrompt:
        """Two texts that the model reads at once."""
        frame, cut = self._frame(2), self._cut
        room = cut.room(frame)
        first = await self._encode(pair[0], False, cut.kept(room), where[0])
        second = await self._encode(pair[1], False, cut.kept(room), where[1])
        first_ids, second_ids = first.ids, second.ids
        if cut.limit:
            first_size, second_size = longest_first(first.total, second.total, room)
            first_ids, second_ids = cut.shortened(first_ids, first_size), cut.shortened(second_ids, second_size)
        return NamedPrompt(frame.joined(first_ids, second_ids), where[1], frame.second_from(first_ids))

    async def written_pair(self, chat: ChatRequest, template: str, trusted: bool, where: str) -> NamedPrompt:
        """Two texts as a template writes them, special tokens included. trusted: it is the server's or the model's"""
        how = Encoding(False, self._cut.kept(self._cut.limit), where)
        return NamedPrompt((await self._texts.chat(chat, how, template, trusted=trusted)).ids, where)

    async def _encode(self, text: str, special: bool, kept: Kept, where: str) -> TextTokens:
        return await self._texts.loaded().encode(text, Encoding(special, kept, where))

    def _frame(self, count: int) -> TextFrame:
        if count not in self._frames:
            tokenizer = self._texts.loaded().tokenizer
            self._frames[count] = TextFrame.of_one(tokenizer) if count == 1 else TextFrame.of_two(tokenizer)
        return self._frames[count]


def pooled_texts(body: PooledFields, state: ServerState, prompt_name: str | None = None) -> PooledTexts:
    """prompt_name: of the model's; None = its default"""
    cut = TokenCut.of(body, state.llm.config.model.max_model_len)
    return PooledTexts(cut, state.llm.texts, state.llm.config.pooling.form(prompt_name))


async def pooled_prompts(body: PooledBody, inputs: Sequence[str | list[int]], state: ServerState) -> list[NamedPrompt]:
    if body.messages is not None:
        cut = TokenCut.of(body, state.llm.config.model.max_model_len)
        how = Encoding(bool(body.add_special_tokens), cut.kept(cut.limit), field="messages")
        return [NamedPrompt(await conversation_tokens(body, None, how, state), "messages")]
    texts, prompts, total = pooled_texts(body, state, body.prompt_name), [], 0
    for number, given in enumerate(inputs):
        where = body.where(number)
        token_ids = await texts.tokens(given, body.add_special_tokens is not False, where)
        total = add_tokens(total, len(token_ids), where)
        prompts.append(NamedPrompt(token_ids, where))
        await asyncio.sleep(0)  # others have a turn between two of many short ones
    return prompts


def add_tokens(total: int, count: int, where: str) -> int:
    """The tokens of a request so far; refused where there are too many."""
    if total + count > MAX_TOKENS:
        raise InvalidRequestError(
            f"with {where} the request has more than {MAX_TOKENS} tokens: send fewer texts at once", where
        )
    return total + count
