"""What every engine is asked to do: greedy, end of sequence ignored, all requests of a case handed over at once."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    prompt: list[int]
    num_output: int


CASES = {
    "a": "one stream, 32 in, 256 out: decode tokens per second",
    "b": "a prompt of 1,024 tokens: prompt tokens per second",
    "c": "32 requests, 128 in, 128 out: output tokens per second",
    "d": "64 requests, 16-512 in, 16-256 out: output tokens per second",
    "e": "process start to first token: seconds",
}


def requests(case: str, repetition: int) -> list[Request]:
    """Prompts are fresh in each repetition, so that no prefix is found in a cache; lengths are the same in all."""
    words = random.Random(1000003 * repetition + ord(case))
    if case == "a":
        return [random_request(words, 32, 256)]
    if case == "b":
        return [random_request(words, 1024, 1)]
    if case == "c":
        return [random_request(words, 128, 128) for _ in range(32)]
    lengths = random.Random(0)
    sizes = [(lengths.randint(16, 512), lengths.randint(16, 256)) for _ in range(64)]
    return [random_request(words, num_prompt, num_output) for num_prompt, num_output in sizes]


def random_request(words: random.Random, num_prompt: int, num_output: int) -> Request:
    return Request([words.randrange(100, 48000) for _ in range(num_prompt)], num_output)
