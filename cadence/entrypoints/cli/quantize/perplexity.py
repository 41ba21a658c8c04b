"""How well a checkpoint predicts a text that it was not calibrated with."""

from __future__ import annotations

import math

from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.llm import LLM


def perplexity(model: str, windows: list[list[int]]) -> float:
    """Of its values, whatever they are stored in: they are multiplied as the numbers that they stand for. Every token
    but the first of a window counts."""
    longest = max(map(len, windows))
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    total, count = 0.0, 0
    with LLM(model, quantization="none", max_model_len=longest + 1, enable_prefix_caching=False) as llm:
        for window in windows:
            output = llm.generate([{"prompt_token_ids": window}], params, use_tqdm=False)[0]
            for token, found in zip(window[1:], (output.prompt_logprobs or [])[1:], strict=True):
                assert found is not None
                total += found[token].logprob
                count += 1
    return math.exp(-total / count)
