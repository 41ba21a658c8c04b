"""What is asked in a soak: every kind of request whose answer is fixed, greedy or seeded."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "while", "slow", "river", "runs")


@dataclass(frozen=True)
class Question:
    number: int
    path: str = field(compare=False)
    body: dict[str, Any] = field(compare=False)

    @property
    def has_stream(self) -> bool:
        return self.path != EMBEDDINGS


def make_questions(count: int, longest_prompt: int, seed: int) -> list[Question]:
    """Greedy and seeded, one or several choices, logprobs or none, short and long prompts, short and long answers; and
    vectors of texts."""
    rng = random.Random(seed)
    return [_make(number, longest_prompt, rng) for number in range(count)]


def _make(number: int, longest_prompt: int, rng: random.Random) -> Question:
    if number % 8 == 5:
        texts = [[rng.randrange(5, 300) for _ in range(rng.choice((1, 20, longest_prompt)))] for _ in range(3)]
        return Question(number, EMBEDDINGS, {"input": texts, "encoding_format": "base64"})
    is_chat = number % 3 == 0
    body: dict[str, Any] = {"max_tokens": rng.choice((1, 8, 24, 60, 150)), "ignore_eos": True, "return_token_ids": True}
    body |= {"temperature": 0} if number % 2 else {"temperature": 0.9, "top_p": 0.95, "seed": number}
    if number % 10 == 0:  # seeded: greedy choices would all be alike
        body["n"] = rng.choice((2, 3))
    if number % 4 == 0:
        body |= {"logprobs": True, "top_logprobs": 3} if is_chat else {"logprobs": 3}
    if number % 7 == 0:
        body |= {"presence_penalty": 0.5, "repetition_penalty": 1.1}
    length = longest_prompt if number % 6 == 0 else rng.choice((1, 5, 20, 60))
    if is_chat:
        text = " ".join(rng.choices(_WORDS, k=max(1, length // 3)))
        return Question(number, CHAT, {**body, "messages": [{"role": "user", "content": text}]})
    return Question(number, COMPLETIONS, {**body, "prompt": [rng.randrange(5, 300) for _ in range(length)]})
