"""A model and a smaller one that drafts for it, in llama.cpp.

Run by `benchmarks.draft_model` in an environment that has llama-cpp-python: `python pair_llama_cpp.py TARGET DRAFT K
THREADS`; tokens of prompts come in as JSON, a line for each goes out.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaDraftModel


class SmallerModel(LlamaDraftModel):
    """Its greedy tokens; what it has computed of the text before stays in its cache."""

    def __init__(self, model: Llama, count: int) -> None:
        self._model, self._count = model, count

    def __call__(self, input_ids: Any, /, **others: Any) -> Any:
        drafts: list[int] = []
        for token in self._model.generate([int(token) for token in input_ids], temp=0.0, repeat_penalty=1.0):
            drafts.append(token)
            if len(drafts) == self._count:
                break
        return np.array(drafts, dtype=np.intc)


def open_model(path: str, threads: int, **options: Any) -> Llama:
    return Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False, **options)


def seconds(model: Llama, prompt: list[int], out: int) -> tuple[float, list[int]]:
    """Without the prompt: from the first token on."""
    tokens: list[int] = []
    start = 0.0
    for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
        start = start or time.perf_counter()
        tokens.append(token)
        if len(tokens) > out:
            return time.perf_counter() - start, tokens
    raise AssertionError


def main() -> None:
    target, draft, count, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    asked = json.load(sys.stdin)
    plain = open_model(target, threads)
    drafts = SmallerModel(open_model(draft, threads), count)
    drafting = open_model(target, threads, draft_model=drafts, logits_all=True)
    for prompt in asked["prompts"]:
        for name, model in (("llama.cpp", plain), ("llama.cpp, drafts", drafting)):
            took, tokens = seconds(model, prompt, asked["out"])
            rate = round(asked["out"] / took, 2)
            print(json.dumps({"engine": name, "tokens_per_second": rate, "first": tokens[:8]}), flush=True)


if __name__ == "__main__":
    main()
