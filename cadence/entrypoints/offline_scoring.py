"""`LLM.score`: how well two texts go together.

| the model can | a pair becomes | its score |
|---|---|---|
| score | one prompt of both texts | what the model says |
| embed | two prompts, each embedded once | the cosine of the two embeddings |
| token_embed, as its first task | the same | the sum of how alike each token is to the other text's most similar one |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cadence.core.errors import InvalidRequestError
from cadence.core.pooled.pooled_outputs import ScoringOutput, ScoringRequestOutput
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.pooled.similarity import similarities
from cadence.engine.text.prompts import ParsedPrompt, PromptType, parse_prompt, split_prompts
from cadence.entrypoints.offline_pooling import OfflinePooling, PooledPrompt, PoolingCall
from cadence.text.chat_template import ChatRequest
from cadence.text.cut_texts import room_in
from cadence.text.pair_template import pair_chat, pair_template
from cadence.text.text_frame import TextFrame, longest_first
from cadence.text.tokenizer import Tokenizer

Render = Callable[[ChatRequest, str], PromptType]  # by a template, the model's own where it is ""


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """Each of the first texts with the second one of its place, or the only first text with each of the second."""

    first: list[PromptType]
    second: list[PromptType]

    @classmethod
    def of(cls, data_1: Any, data_2: Any) -> ScoredPairs:
        first, second = split_prompts(data_1), split_prompts(data_2)
        for name, texts in (("data_1", first), ("data_2", second)):
            if not texts:
                raise InvalidRequestError(f"{name} must hold at least one text", name)
        if len(first) not in (1, len(second)):
            message = f"data_1 holds {len(first)} texts and data_2 {len(second)}: give one, or as many"
            raise InvalidRequestError(message, "data_1")
        return cls(first, second)

    def __len__(self) -> int:
        return len(self.second)

    def first_of(self, number: int) -> int:
        """The place of a pair's first text."""
        return 0 if len(self.first) == 1 else number


class OfflineScoring:
    """template: by which pairs are written where a call names none; "" = by the model's own where that is one for
    pairs, else as the tokenizer joins two texts"""

    def __init__(
        self, pooling: OfflinePooling, tokenizer: Callable[[], Tokenizer], render: Render, template: str = ""
    ) -> None:
        self._pooling = pooling
        self._tokenizer = tokenizer
        self._render = render
        self._template = template

    def scores(self, pairs: ScoredPairs, call: PoolingCall, chat_template: str) -> list[ScoringRequestOutput]:
        tasks = self._pooling.config.tasks
        if "score" in tasks:
            template = pair_template(self._tokenizer(), chat_template or self._template)
            return self._read_together(pairs, call, template)
        if chat_template:
            raise InvalidRequestError("chat_template: this model reads each text by itself", "chat_template")
        if self._pooling.config.compared:
            return self._compared(pairs, call)
        can = f"it can {', '.join(tasks)}" if tasks else "it generates text"
        raise InvalidRequestError(f"this model cannot score: {can}", "task")

    def _read_together(self, pairs: ScoredPairs, call: PoolingCall, template: str) -> list[ScoringRequestOutput]:
        (params, *_) = call.params_for("score", 1)
        if template:
            prompts: Sequence[PromptType] = [self._render(pair_chat(*pair), template) for pair in _texts(pairs)]
        else:
            prompts = list(self._framed(pairs, self._limit(params)))
        outputs = self._pooling.values(prompts, "score", call)
        return [ScoringRequestOutput.from_base(output) for output in outputs]

    def _framed(self, pairs: ScoredPairs, limit: int) -> Iterator[ParsedPrompt]:
        """As the model's tokenizer joins two texts. limit: tokens of a pair; 0 = as many as there are"""
        tokenizer = self._tokenizer()
        frame = TextFrame.of_two(tokenizer)
        room = room_in(frame, limit) if limit else 0
        first, second = _encoded(tokenizer, pairs.first), _encoded(tokenizer, pairs.second)
        for number, theirs in enumerate(second):
            own = first[pairs.first_of(number)]
            if room:
                num_own, num_theirs = longest_first(len(own), len(theirs), room)
                own, theirs = own[:num_own], theirs[:num_theirs]
            yield ParsedPrompt(None, frame.joined(own, theirs), second_from=frame.second_from(own))

    def _limit(self, params: PoolingParams) -> int:
        kept = params.truncate_prompt_tokens or 0
        return self._pooling.max_model_len if kept == -1 else kept

    def _compared(self, pairs: ScoredPairs, call: PoolingCall) -> list[ScoringRequestOutput]:
        outputs = self._pooling.values([*pairs.first, *pairs.second], self._pooling.config.compared, call)
        first, second = outputs[: len(pairs.first)], outputs[len(pairs.first) :]
        return [_likeness(first[pairs.first_of(number)], theirs) for number, theirs in enumerate(second)]


def _texts(pairs: ScoredPairs) -> Iterator[tuple[str, str]]:
    for number, second in enumerate(pairs.second):
        yield parse_prompt(pairs.first[pairs.first_of(number)]).text or "", parse_prompt(second).text or ""


def _encoded(tokenizer: Tokenizer, prompts: list[PromptType]) -> list[list[int]]:
    """Without special tokens. Prompts that are tokens already stay as they are."""
    parsed = [parse_prompt(prompt) for prompt in prompts]
    texts = [prompt.text or "" for prompt in parsed if prompt.token_ids is None]
    encoded = iter(tokenizer.encode_batch(texts, add_special_tokens=False))
    return [next(encoded) if prompt.token_ids is None else prompt.token_ids for prompt in parsed]


def _likeness(first: PooledPrompt, second: PooledPrompt) -> ScoringRequestOutput:
    one_np, other_np = (np.asarray(each.outputs.data, dtype=np.float32) for each in (first, second))
    return ScoringRequestOutput(
        request_id=f"{first.request_id}_{second.request_id}",
        outputs=ScoringOutput(similarities([one_np], [other_np])[0]),
        prompt_token_ids=[*first.prompt_token_ids, *second.prompt_token_ids],
        num_cached_tokens=first.num_cached_tokens + second.num_cached_tokens,
    )
