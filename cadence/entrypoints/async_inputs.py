"""Prompts and parameters become requests on an event loop, which does little of that work in one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.sampling_params import SamplingParams
from cadence.engine.text.input_processor import InputProcessor, ProcessedInput, spelling_size, weight_of
from cadence.engine.text.prompts import ParsedPrompt, PromptType, formed, parse_prompt
from cadence.text.cut_texts import room_in
from cadence.text.service.loop_share import LoopTurns
from cadence.text.service.null_text_service import NullTextService
from cadence.text.service.text_service import Encoding, TextService
from cadence.text.text_frame import TextFrame

HEAVY = 4096  # entries and characters of parameters; what has more is checked beside the event loop


class AsyncInputs:
    def __init__(self, inputs: InputProcessor, texts: TextService | NullTextService) -> None:
        self._inputs = inputs
        self._texts = texts
        self._turns = LoopTurns()
        self._frame: TextFrame | None = None  # that the tokenizer writes around a text, once it was asked for

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._inputs.eos_token_ids

    def weigh(self, weights: Mapping[str, float]) -> None:
        """By tenant, from now on: what each gets of the device beside others. Those that are not named have 1."""
        self._inputs.weights = weights

    def forget_media(self) -> None:
        """What clients have sent under names of theirs."""
        self._inputs.prompts.forget()

    @property
    def placeholders(self) -> Mapping[str, str]:
        """By kind of medium, what stands for one in a prompt; empty = the model takes text alone."""
        return self._inputs.prompts.placeholders

    async def process(
        self, request_id: str, prompt: PromptType, params: SamplingParams, **options: Any
    ) -> ProcessedInput:
        """options: the further parameters of `InputProcessor.process`"""
        if params.logits_processors:
            raise InvalidRequestError(
                "logits_processors are Python functions and cannot be sent to an engine in another process; use LLM",
                "logits_processors",
            )
        await self._turns.enter()
        work = partial(self._inputs.process, request_id, await self._tokenised(prompt), params, **options)
        if weight_of(params) > HEAVY:
            return await asyncio.to_thread(work)
        if params.bad_words:
            return await self._texts.off_loop(spelling_size(params.bad_words), work)
        return work()

    async def process_pooling(
        self, request_id: str, prompt: PromptType, params: PoolingParams, **options: Any
    ) -> ProcessedInput:
        """options: the further parameters of `InputProcessor.process_pooling`"""
        await self._turns.enter()
        prompt = formed(prompt, self._inputs.text_form)
        tokens = await self._cut(parse_prompt(prompt), self._inputs.kept_tokens(params))
        return self._inputs.process_pooling(request_id, tokens, params, **options)

    async def process_alignment(
        self, request_id: str, prompt: PromptType, spec: AlignmentSpec, **options: Any
    ) -> ProcessedInput:
        """options: the further parameters of `InputProcessor.process_alignment`"""
        await self._turns.enter()
        return self._inputs.process_alignment(request_id, prompt, spec, **options)

    async def prepared(self, prompt: PromptType) -> ParsedPrompt:
        """By the tokens that the model begins with, checked as for a request."""
        return self._inputs.prepared(await self._tokenised(prompt))

    async def _cut(self, prompt: ParsedPrompt, kept: int) -> ParsedPrompt:
        """kept: tokens of a text at most, special ones included; 0 = all"""
        if prompt.source is not None:
            return await asyncio.to_thread(self._inputs.prompts.divided, prompt)
        if not kept or prompt.token_ids is not None:
            return await self._tokenised(prompt)
        texts, text = self._texts.loaded(), prompt.text or ""
        frame = self._frame = self._frame or TextFrame.of_one(texts.tokenizer)
        how = Encoding(add_special_tokens=False, kept=(None, room_in(frame, kept)))
        return replace(prompt, text=text, token_ids=frame.joined((await texts.encode(text, how)).ids))

    async def _tokenised(self, prompt: PromptType) -> ParsedPrompt:
        parsed = parse_prompt(prompt)
        if parsed.source is not None:
            return await asyncio.to_thread(self._inputs.prepared, parsed)
        if parsed.token_ids is not None:
            return parsed
        text = parsed.text or ""
        return replace(parsed, text=text, token_ids=(await self._texts.encode(text)).ids)
