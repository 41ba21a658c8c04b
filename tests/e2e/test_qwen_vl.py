"""Qwen2-VL and Qwen2.5-VL as a whole, pictures and videos: what transformers says, and the same in any company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence import LLM, RequestOutput, SamplingParams
from tests.helpers.qwen_oracle import Medium, QwenOracle
from tests.helpers.seeing import noise
from tests.helpers.tiny_qwen_vl import GENERATIONS, make_qwen_vl
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine]

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
PICTURES = [np.asarray(noise(*size, seed)) for seed, size in enumerate(((40, 30), (64, 64), (20, 90)))]
VIDEOS = [np.stack([np.asarray(noise(48, 64, 9 + frame)) for frame in range(count)]) for count in (4, 3)]
SIGNS = {3: "<|vision_start|><|image_pad|><|vision_end|>", 4: "<|vision_start|><|video_pad|><|vision_end|>"}
PROMPTS: list[tuple[str, list[Medium]]] = [  # # stands for the next of the media
    ("<|user|>#what is the quick brown fox<|end|><|assistant|>", [PICTURES[0]]),
    ("<|user|>one # and then # two three", [PICTURES[1], PICTURES[2]]),
    ("to be or not to be", []),
    ("<|user|>look: #slow river", [VIDEOS[0]]),
    ("#lazy dog # or ##?", [VIDEOS[1], PICTURES[0], PICTURES[2], VIDEOS[0]]),
    ("<|user|>#what is the quick brown fox<|end|><|assistant|>", [PICTURES[2]]),
]
BASE: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 200}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "not recorded": {"enforce_eager": True},
    "chunks of 5": {"max_num_encoder_tokens": 1, "max_num_batched_tokens": 16, "long_prefill_token_threshold": 5},
    "bursts of 4, drafts": {"num_scheduler_steps": 4, "speculative_config": DRAFTS},
    "tiny pool": {"num_gpu_blocks_override": 20, "max_model_len": 300, "async_scheduling": True},
    "two ranks": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
}
ALWAYS = ("together", "chunks of 5", "bursts of 4, drafts")


def text_of(text: str, media: Sequence[Medium]) -> str:
    for medium in media:
        text = text.replace("#", SIGNS[medium.ndim], 1)
    return text


def prompt(text: str, media: Sequence[Medium]) -> dict[str, Any]:
    data = {kind: [each for each in media if each.ndim == depth] for kind, depth in (("image", 3), ("video", 4))}
    given = {kind: each for kind, each in data.items() if each}
    return {"prompt": text_of(text, media)} | ({"multi_modal_data": given} if given else {})


def answers(outputs: Sequence[RequestOutput]) -> list[tuple[list[int], list[float]]]:
    found = []
    for output in outputs:
        (completion,) = output.outputs
        assert completion.logprobs is not None
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        found.append((list(completion.token_ids), [position[token].logprob for token, position in pairs]))
    return found


Made = tuple[Path, QwenOracle]


@pytest.fixture(scope="module", params=GENERATIONS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = make_qwen_vl(request.param, tmp_path_factory.mktemp("qwen"))
    return directory, QwenOracle(request.param, directory)


@pytest.fixture(scope="module")
def alone(made: Made) -> list[tuple[list[int], list[float]]]:
    llm = LLM(model=str(made[0]), **BASE, enable_prefix_caching=False)
    return [answers(llm.generate(prompt(*each), GREEDY, use_tqdm=False))[0] for each in PROMPTS]


def test_tokens_and_logprobs_are_those_of_transformers(made: Made, alone: list[tuple[list[int], list[float]]]) -> None:
    for (tokens, logprobs), (text, media) in zip(alone, PROMPTS, strict=True):
        lines = made[1].logprobs(text_of(text, media), media, tokens)
        assert tokens == lines.argmax(dim=-1).tolist()
        expected = lines[torch.arange(len(tokens)), torch.tensor(tokens)]
        torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-4, rtol=1e-4)
    assert alone[0] != alone[5], "another picture, another answer"


@pytest.mark.parametrize("way", mostly_wide(WAYS, ALWAYS))
def test_the_same_alone_and_in_company(made: Made, alone: list[tuple[list[int], list[float]]], way: str) -> None:
    llm = LLM(model=str(made[0]), **BASE | WAYS[way])
    for _ in range(2):  # the second time from caches
        found = answers(llm.generate([prompt(*each) for each in PROMPTS], GREEDY, use_tqdm=False))
        for (tokens, logprobs), (tokens_alone, logprobs_alone) in zip(found, alone, strict=True):
            assert tokens == tokens_alone
            if way == "two ranks":
                np.testing.assert_allclose(logprobs, logprobs_alone, atol=1e-4)
            else:
                assert logprobs == logprobs_alone
