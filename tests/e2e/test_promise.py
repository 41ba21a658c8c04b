"""The promise: the same request gives the same tokens, whatever else happens around it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.draft_stats import DraftStats
from tests.helpers.seeing import noise
from tests.helpers.tiny_models import VOCAB
from tests.helpers.tiny_seq2seq import make_seq2seq
from tests.helpers.tiny_vision import make_vision
from tests.helpers.wide import mostly_wide_rows

pytestmark = [pytest.mark.engine, pytest.mark.warm]

NUM_REQUESTS = 40
COUNT = 24  # of them, here
PICTURE_ID = VOCAB  # stands for a picture: the first token after those that all tiny models share
BASE = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 16, "num_gpu_blocks_override": 1000}
ALL_AT_ONCE = {"max_num_seqs": 48, "max_num_batched_tokens": 8192}
# The last tokens are looked up where they stood before, though that is seldom right here.
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}

# A pool of 36 blocks holds a few of the requests to their end: most are preempted, some more than once.
WAYS: dict[str, dict[str, Any]] = {
    "together": ALL_AT_ONCE,
    "chunks of 16": {"max_num_batched_tokens": 16},
    "chunks of 64": {"max_num_batched_tokens": 64},
    "no prefix cache": {**ALL_AT_ONCE, "enable_prefix_caching": False},
    "tiny pool": {"num_gpu_blocks_override": 36, "max_num_seqs": 48},
    "depth 2": {**ALL_AT_ONCE, "async_scheduling": True},
    "depth 2, chunks of 16": {"max_num_batched_tokens": 16, "async_scheduling": True},
    "depth 2, tiny pool": {"num_gpu_blocks_override": 36, "max_num_seqs": 48, "async_scheduling": True},
    "drafts": {**ALL_AT_ONCE, "speculative_config": DRAFTS},
    "drafts, depth 2, chunks": {
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": 16,
        "async_scheduling": True,
        "speculative_config": DRAFTS,
    },
    "drafts, depth 2, tiny pool, bursts of 4": {
        "num_gpu_blocks_override": 36,
        "max_num_seqs": 48,
        "async_scheduling": True,
        "num_scheduler_steps": 4,
        "speculative_config": DRAFTS,
    },
    # Three steps in flight, in two stages.
    "stages": {**ALL_AT_ONCE, "pipeline_parallel_size": 2},
    "stages, chunks of 16, tiny pool": {
        "max_num_batched_tokens": 48,
        "long_prefill_token_threshold": 16,
        "num_gpu_blocks_override": 36,
        "max_num_seqs": 48,
        "pipeline_parallel_size": 2,
    },
    "stages, drafts, tiny pool, bursts of 4": {
        "num_gpu_blocks_override": 36,
        "max_num_seqs": 48,
        "num_scheduler_steps": 4,
        "speculative_config": DRAFTS,
        "pipeline_parallel_size": 2,
    },
}


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    logprobs: list[float]
    finish: tuple[str | None, int | str | None]
    text: str
    preemptions: int
    drafts: DraftStats


Work = list[tuple[Any, SamplingParams]]  # a prompt, and what is asked of it


def requests(vocab_size: int) -> Work:
    """Forty requests: a third share a prefix; greedy and seeded; every sampling option in the mix."""
    rng = random.Random(11)
    shared = [rng.randrange(3, vocab_size) for _ in range(70)]
    options: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.2, "top_k": 20},
        {"temperature": 0.9, "min_p": 0.05, "repetition_penalty": 1.3},
        {"temperature": 0, "presence_penalty": 0.8, "frequency_penalty": 0.4},
        {"temperature": 0.8, "logit_bias": {5: 3.0, 9: -100.0}},
        {"temperature": 1.0, "allowed_token_ids": list(range(10, 60))},
        {"temperature": 0, "min_tokens": 8, "max_tokens": 40, "stop_token_ids": list(range(0, vocab_size, 7))},
        {"temperature": 0.6, "top_k": 50, "top_p": 0.8, "stop": ["a", "th"]},
    ]
    made = []
    for index in range(NUM_REQUESTS):
        body = [rng.randrange(3, vocab_size) for _ in range(rng.choice([1, 5, 16, 17, 40, 90]))]
        prompt = (shared[: rng.choice([16, 40, 70])] if index % 3 == 0 else []) + body
        common = {"seed": 1000 + index, "max_tokens": rng.choice([1, 20, 40, 60]), "logprobs": 2}
        made.append((prompt, SamplingParams(**{**common, **options[index % len(options)]})))
    return made


def with_content(work: Work) -> Work:
    """Each prompt is where the decoder begins, and beside it is one of a few contents for the encoder: those that share
    a prefix share it, too."""
    contents = [[5 + 7 * number, *range(9, 9 + 13 * number), 1] for number in range(4)]
    return [
        ({"encoder_prompt": contents[0 if index % 3 == 0 else index % 4], "decoder_prompt": prompt}, params)
        for index, (prompt, params) in enumerate(work)
    ]


def with_pictures(work: Work) -> Work:
    """Every fourth prompt is text alone, the others have one of a few pictures: those that share a prefix share the
    picture in it."""
    pictures = [noise(24 + 8 * number, 40, number) for number in range(4)]
    made: Work = []
    for index, (prompt, params) in enumerate(work):
        shares = index % 3 == 0
        at = 5 if shares else len(prompt) // 2
        token_ids = [*prompt[:at], PICTURE_ID, *prompt[at:]]
        data = {"image": [pictures[0 if shares else index % 4]]}
        made.append((prompt if index % 4 == 3 else {"prompt_token_ids": token_ids, "multi_modal_data": data}, params))
    return made


def answer(output: RequestOutput) -> Answer:
    completion = output.outputs[0]
    assert completion.logprobs is not None and output.metrics is not None
    pairs = zip(completion.logprobs, completion.token_ids, strict=True)
    return Answer(
        token_ids=list(completion.token_ids),
        logprobs=[position[token].logprob for position, token in pairs],
        finish=(completion.finish_reason, completion.stop_reason),
        text=completion.text,
        preemptions=output.metrics.num_preemptions,
        drafts=output.speculation,
    )


def run(llm: LLM, order: list[int], work: Work) -> dict[int, Answer]:
    outputs = llm.generate([work[i][0] for i in order], [work[i][1] for i in order], use_tqdm=False)
    return {index: answer(output) for index, output in zip(order, outputs, strict=True)}


def assert_same(found: dict[int, Answer], expected: dict[int, Answer]) -> None:
    for index, wanted in expected.items():
        got = found[index]
        assert got.token_ids == wanted.token_ids, f"request {index}"
        assert got.finish == wanted.finish and got.text == wanted.text, f"request {index}"
        assert got.logprobs == pytest.approx(wanted.logprobs, abs=1e-5), f"request {index}"


class Subject:
    """One model with its requests, each answered alone by a plain engine: what all ways must give."""

    def __init__(self, directory: Path, beside: Callable[[Work], Work] = list) -> None:
        """beside: requests with what the model reads or sees beside their tokens"""
        self.directory = str(directory)
        plain = LLM(self.directory, **BASE, enable_prefix_caching=False)
        self.work = beside(requests(VOCAB))
        self.alone = {i: run(plain, [i], self.work)[i] for i in range(COUNT)}


@pytest.fixture(scope="module")
def subject_of(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    def made(family: str) -> Subject:
        if family in WITH_PICTURES:
            return Subject(make_vision(family, tmp_path_factory.mktemp(family)), with_pictures)
        if family != WITH_ENCODER:
            return Subject(tiny_model(family))
        directory = make_seq2seq(family, tmp_path_factory.mktemp(family), max_position_embeddings=256)
        return Subject(directory, with_content)

    return cache(made)


# One KV group, two over one pool, experts, chunks, cross attention; pictures, and such whose tokens see each other;
# states alone, and beside attention.
WITH_ENCODER = "bart"
WITH_PICTURES = ("llava", "gemma3")
WITH_CHUNKS = ("llama4_in_turn",)
TINY_POOL = {"gemma3": {"num_gpu_blocks_override": 56}}  # a request as long as the context may be takes so many
WITHOUT_BLOCKS = ("mamba2",)  # a state in place of keys: no request waits for blocks
WITH_STATES = (*WITHOUT_BLOCKS, "bamba")  # which seldom repeat themselves: tests/e2e/test_speculation.py has drafts
FAMILIES = ("llama", "gemma2", "qwen3_moe", *WITH_CHUNKS, WITH_ENCODER, *WITH_PICTURES, *WITH_STATES)
SUBJECTS = [(family, way) for family in FAMILIES for way in WAYS]
# Each option at least once, most of them together; the engine of the reference has no prefix cache.
ALWAYS = [
    ("llama", "drafts, depth 2, tiny pool, bursts of 4"),
    ("llama", "stages, chunks of 16, tiny pool"),
    ("gemma2", "depth 2, tiny pool"),
    ("qwen3_moe", "depth 2, chunks of 16"),
    ("llama4_in_turn", "stages, drafts, tiny pool, bursts of 4"),
    (WITH_ENCODER, "drafts, depth 2, tiny pool, bursts of 4"),
    ("llava", "drafts, depth 2, tiny pool, bursts of 4"),
    ("gemma3", "depth 2, chunks of 16"),
    ("mamba2", "drafts, depth 2, chunks"),
    ("bamba", "drafts, depth 2, tiny pool, bursts of 4"),
]


@pytest.mark.parametrize(("family", "way"), mostly_wide_rows(SUBJECTS, ALWAYS))
def test_same_request_same_tokens(subject_of: Callable[[str], Subject], family: str, way: str) -> None:
    subject = subject_of(family)
    llm = LLM(subject.directory, **{**BASE, **WAYS[way], **TINY_POOL.get(family if "tiny pool" in way else "", {})})
    order = list(range(COUNT))
    cold = run(llm, order, subject.work)
    random.Random(3).shuffle(order)
    warm = run(llm, order, subject.work)
    assert_same(cold, subject.alone)
    assert_same(warm, subject.alone)
    if "tiny pool" in way and family not in WITHOUT_BLOCKS:
        assert sum(bool(cold[i].preemptions or warm[i].preemptions) for i in order) > COUNT // 5
    if "drafts" in way and family not in WITH_STATES:
        assert sum(cold[i].drafts.num_accepted + warm[i].drafts.num_accepted for i in order) > COUNT // 2
