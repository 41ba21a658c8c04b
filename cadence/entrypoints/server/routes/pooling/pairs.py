"""Scores of pairs of texts, by a model that reads both at once, or by the angle between their embeddings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from cadence.core.pooling_params import PoolingParams
from cadence.core.similarity import cosines
from cadence.entrypoints.server.http.admission import estimate_tokens
from cadence.entrypoints.server.protocol.pooling.answers import FloatArray
from cadence.entrypoints.server.protocol.pooling.scores import ScoringBody, TextPairs
from cadence.entrypoints.server.routes.pooling.in_flight import width
from cadence.entrypoints.server.routes.pooling.prompts import NamedPrompt, add_tokens, pooled_texts
from cadence.entrypoints.server.routes.pooling.work import PooledText, PooledWork, pooled_values
from cadence.entrypoints.server.routes.state import ServerState


@dataclass(frozen=True, slots=True)
class PairScores:
    scores: list[float]  # of every pair
    read: list[PooledText[FloatArray]]  # what was computed for them


def reads_pairs(state: ServerState) -> bool:
    return "score" in state.llm.config.pooling.tasks


def scoring_params(body: ScoringBody, state: ServerState) -> PoolingParams:
    """Those of an embedding where the model makes no scores. `checked_work` refuses what it can do neither way."""
    tasks = state.llm.config.pooling.tasks
    return PoolingParams(task="embed") if "embed" in tasks and "score" not in tasks else body.params()


async def pair_scores(work: PooledWork, pairs: TextPairs, state: ServerState) -> PairScores:
    size = estimate_tokens(pairs.first) + estimate_tokens(pairs.second)
    async with state.admission.enter(work.request, size, width(pairs.count)):
        return await (_read_together(work, pairs, state) if reads_pairs(state) else _compared(work, pairs, state))


async def _read_together(work: PooledWork, pairs: TextPairs, state: ServerState) -> PairScores:
    texts, prompts, total = pooled_texts(work.body, state), [], 0
    for number in range(pairs.count):
        prompt = await texts.pair(pairs.pair(number), (pairs.where(0, number), pairs.where(1, number)))
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
    read = await pooled_values(work, prompts, state, np.asarray)
    vectors_np = np.stack([one.value for one in read])
    first_np, second_np = vectors_np[: len(pairs.first)], vectors_np[len(pairs.first) :]
    return PairScores(cosines(first_np, second_np).tolist(), read)
