"""Scores of pairs of texts, by a model that reads both at once, or by how alike their embeddings are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from cadence.core.errors import InvalidRequestError
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.pooled.similarity import similarities
from cadence.entrypoints.server.http.admission import estimate_tokens
from cadence.entrypoints.server.protocol.pooling.answers import FloatArray
from cadence.entrypoints.server.protocol.pooling.scores import ScoringBody, TextPairs
from cadence.entrypoints.server.routes.pooling.in_flight import width
from cadence.entrypoints.server.routes.pooling.prompts import NamedPrompt, add_tokens, pooled_texts
from cadence.entrypoints.server.routes.pooling.work import PooledText, PooledWork, pooled_values
from cadence.entrypoints.server.routes.rendered_chat import check_template_allowed
from cadence.entrypoints.server.routes.state import ServerState
from cadence.text.pair_template import pair_chat, pair_template


@dataclass(frozen=True, slots=True)
class PairScores:
    scores: list[float]  # of every pair
    read: list[PooledText[FloatArray]]  # what was computed for them


def reads_pairs(state: ServerState) -> bool:
    return "score" in state.llm.config.pooling.tasks


def scoring_params(body: ScoringBody, state: ServerState) -> PoolingParams:
    """Those of an embedding where the model makes no scores. `checked_work` refuses what it can do neither way."""
    compared = state.llm.config.pooling.compared
    return PoolingParams(task=compared) if compared and not reads_pairs(state) else body.params()


def check_pair_template(body: ScoringBody, state: ServerState) -> None:
    if body.chat_template and not reads_pairs(state):
        raise InvalidRequestError("chat_template: this model reads each text by itself", "chat_template")
    check_template_allowed(body.chat_template, state)


async def pair_scores(work: PooledWork, body: ScoringBody, pairs: TextPairs, state: ServerState) -> PairScores:
    size = estimate_tokens(pairs.first) + estimate_tokens(pairs.second)
    async with state.admission.enter(work.request, size, width(pairs.count)):
        return await (_read_together(work, body, pairs, state) if reads_pairs(state) else _compared(work, pairs, state))


class _PairPrompts:
    """How two texts become one prompt: by a template, or joined by special tokens."""

    def __init__(self, work: PooledWork, body: ScoringBody, state: ServerState) -> None:
        self._texts = pooled_texts(work.body, state)
        self._template = pair_template(state.llm.texts.loaded().tokenizer, body.chat_template or state.chat_template)
        self._is_trusted = not body.chat_template
        self._variables = {**state.options.default_chat_template_kwargs, **(body.chat_template_kwargs or {})}

    async def prompt(self, pair: tuple[str, str], where: tuple[str, str]) -> NamedPrompt:
        if not self._template:
            return await self._texts.pair(pair, where)
        chat = pair_chat(*pair, self._variables)
        return await self._texts.written_pair(chat, self._template, self._is_trusted, where[1])


async def _read_together(work: PooledWork, body: ScoringBody, pairs: TextPairs, state: ServerState) -> PairScores:
    made, prompts, total = _PairPrompts(work, body, state), [], 0
    for number in range(pairs.count):
        prompt = await made.prompt(pairs.pair(number), (pairs.where(0, number), pairs.where(1, number)))
        total = add_tokens(total, len(prompt.token_ids), prompt.where)
        prompts.append(prompt)
        await asyncio.sleep(0)  # others have a turn between two of many short ones
    read = await pooled_values(work, prompts, state, np.asarray)
    return PairScores([float(one.value[0]) for one in read], read)


async def _compared(work: PooledWork, pairs: TextPairs, state: ServerState) -> PairScores:
    texts, prompts, total = pooled_texts(work.body, state), [], 0
    for side, side_texts in enumerate((pairs.first, pairs.second)):
        for number, text in enumerate(side_texts):
            where = pairs.where(side, number)
            token_ids = await texts.tokens(text, True, where)
            total = add_tokens(total, len(token_ids), where)
            prompts.append(NamedPrompt(token_ids, where))
            await asyncio.sleep(0)
    if work.spec.by_token:
        work.check_size(prompts, state)
    read = await pooled_values(work, prompts, state, np.asarray)
    values = [one.value for one in read]
    first, second = values[: len(pairs.first)], values[len(pairs.first) :]
    each = first if len(first) > 1 else first * len(second)
    return PairScores(await asyncio.to_thread(similarities, each, second), read)
