"""Models that see, as a whole: the tokens of transformers, and the same in any company."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.errors import InvalidRequestError
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.engine.metrics.metric import Counter
from tests.helpers.seeing import QwenOracle, SeeingOracle, noise
from tests.helpers.tiny_models import make_tiny
from tests.helpers.tiny_qwen_vl import GENERATIONS, IMAGE_PAD, VIDEO_PAD, make_qwen_vl
from tests.helpers.tiny_vision import make_vision
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

SIGN = {
    "gemma3": "<start_of_image>",
    "qwen": "<|vision_start|><|image_pad|><|vision_end|>",
}  # what stands for a picture; "<image>" elsewhere
BASE: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 200}
PLAIN: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "logprobs": 2}
GREEDY = SamplingParams(**PLAIN)
FIRST, SECOND, LONG = noise(40, 30, 1), noise(28, 28, 2), noise(20, 90, 3)
PROMPTS: list[tuple[str, list[Image.Image]]] = [
    ("USER: IMAGE\nwhat is the quick brown fox ASSISTANT:", [FIRST]),
    ("USER: IMAGE and then IMAGE one two three", [SECOND, LONG]),
    ("to be or not to be", []),
    ("USER: IMAGE\nwhat is the slow river ASSISTANT:", [FIRST]),
    ("USER: IMAGE\nwhat is the quick brown fox ASSISTANT:", [SECOND]),
    ("IMAGE", [FIRST]),
]
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "chunks, no prefix cache": {"max_num_batched_tokens": 8, "enable_prefix_caching": False},
    "chunks of 5, one picture a step": {"max_num_encoder_tokens": 1, "max_num_batched_tokens": 16,
                                        "long_prefill_token_threshold": 5},
    "bursts of 4, drafts": {"num_scheduler_steps": 4, "speculative_config": DRAFTS},
    "two ranks": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
    "tiny pool, depth 2": {"num_gpu_blocks_override": 14, "max_model_len": 160, "async_scheduling": True},
}  # fmt: skip
FEATURES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4, "temperature": 0.9, "seed": 3},
    {"structured_outputs": StructuredOutputsParams(regex="(ab|cd){2,9}"), "ignore_eos": False},
    {"n": 2, "temperature": 0.8, "seed": 11},
    {"prompt_logprobs": 1},
]

Made = tuple[Path, SeeingOracle]
Answers = list[tuple[list[int], list[float]]]


def prompt(text: str, pictures: Sequence[Any], family: str = "llava") -> dict[str, Any]:
    data = {"multi_modal_data": {"image": list(pictures)}} if pictures else {}
    return {"prompt": text.replace("IMAGE", SIGN.get(family, "<image>")), **data}


def answers(outputs: Sequence[RequestOutput]) -> Answers:
    found = []
    for output in outputs:
        for completion in output.outputs:
            assert completion.logprobs is not None
            pairs = zip(completion.token_ids, completion.logprobs, strict=True)
            found.append((list(completion.token_ids), [position[token].logprob for token, position in pairs]))
    return found


REQUESTS = [
    *((prompt(*each), GREEDY) for each in PROMPTS),
    *((prompt(*PROMPTS[number % 2]), SamplingParams(**PLAIN | given)) for number, given in enumerate(FEATURES)),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = make_vision("llava", tmp_path_factory.mktemp("llava"))
    return directory, SeeingOracle(directory)


@pytest.fixture(scope="module")
def plain(made: Made) -> LLM:
    return LLM(model=str(made[0]), **BASE)


@pytest.fixture(scope="module")
def alone(plain: LLM) -> Answers:
    """Each request by itself, with an empty cache."""
    found: Answers = []
    for given, params in REQUESTS:
        plain.reset_prefix_cache()
        found += answers(plain.generate(given, params, use_tqdm=False))
    return found


def check_parity(lines: torch.Tensor, answer: tuple[list[int], list[float]], barred: Sequence[int] = ()) -> None:
    """lines: the oracle's, of these tokens. barred: what could not be chosen"""
    tokens, logprobs = answer
    allowed = lines.index_fill(1, torch.tensor(list(barred), dtype=torch.int64), -torch.inf)
    assert tokens == allowed.argmax(dim=-1).tolist()
    expected = lines[torch.arange(len(tokens)), torch.tensor(tokens)]
    torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-4, rtol=1e-4)


def barring(pads: Sequence[int]) -> SamplingParams:
    """Tokens that the oracle counts as a picture's, wherever they stand."""
    return SamplingParams(**PLAIN, logit_bias=dict.fromkeys(pads, -100.0))


def test_tokens_and_logprobs_are_those_of_transformers(made: Made, plain: LLM, alone: Answers) -> None:
    oracle = made[1]
    pads = [oracle.model.config.image_token_id]
    found = answers(plain.generate([prompt(*each) for each in PROMPTS], barring(pads), use_tqdm=False))
    for answer, (text, pictures) in zip(found, PROMPTS, strict=True):
        check_parity(oracle.logprobs(text.replace("IMAGE", "<image>"), pictures, answer[0]), answer, pads)
    assert alone[0] != alone[4], "another picture, another answer"


@pytest.mark.parametrize("way", mostly_wide(WAYS, ("together", "chunks of 5, one picture a step", "two ranks")))
def test_the_same_alone_and_in_company(made: Made, alone: Answers, way: str) -> None:
    llm = LLM(model=str(made[0]), **BASE | WAYS[way])
    prompts, params = [given for given, _ in REQUESTS], [params for _, params in REQUESTS]
    for _ in range(2):  # the second time from caches
        found = answers(llm.generate(prompts, params, use_tqdm=False))
        for (tokens, logprobs), (tokens_alone, logprobs_alone) in zip(found, alone, strict=True):
            assert tokens == tokens_alone
            if way in ("two ranks",):
                np.testing.assert_allclose(logprobs, logprobs_alone, atol=1e-4)
            else:
                assert logprobs == logprobs_alone


@pytest.mark.parametrize(
    "family",
    mostly_wide(("gemma3", "smolvlm", "idefics3", "llava_next", "llava_siglip"), ("gemma3", "smolvlm", "llava_next")),
)
def test_every_family_says_what_transformers_says(tmp_path: Path, family: str) -> None:
    """In chunks that end among a picture's tokens, where the family lets them."""
    directory = make_vision(family, tmp_path / family)
    oracle = SeeingOracle(directory)
    llm = LLM(model=str(directory), **BASE, max_num_batched_tokens=64, long_prefill_token_threshold=23)
    pads, sign = [oracle.model.config.image_token_id], SIGN.get(family, "<image>")
    for _ in range(2):
        found = answers(llm.generate([prompt(*each, family) for each in PROMPTS], barring(pads), use_tqdm=False))
        for answer, (text, pictures) in zip(found, PROMPTS, strict=True):
            check_parity(oracle.logprobs(text.replace("IMAGE", sign), pictures, answer[0]), answer, pads)


@pytest.mark.parametrize("generation", mostly_wide(GENERATIONS, ("2.5",)))
def test_tokens_stand_by_line_and_column(tmp_path: Path, generation: str) -> None:
    """Qwen-VL: positions with three axes, in chunks, from caches, and in recorded forwards."""
    directory = make_qwen_vl(generation, tmp_path / "qwen")
    oracle = QwenOracle(directory)
    llm = LLM(model=str(directory), **BASE, max_num_batched_tokens=64, long_prefill_token_threshold=23)
    pads = [IMAGE_PAD, VIDEO_PAD]  # which the oracle counts wherever they stand
    for _ in range(2):
        outputs = llm.generate([prompt(*each, "qwen") for each in PROMPTS], barring(pads), use_tqdm=False)
        for output, answer, (_, pictures) in zip(outputs, answers(outputs), PROMPTS, strict=True):
            assert output.prompt_token_ids is not None
            check_parity(oracle.logprobs(output.prompt_token_ids, pictures, answer[0]), answer, pads)


def counting(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Vectors of each content that its tower encodes from now on."""
    from cadence.models.vision.llava import LlavaTower

    counts: list[int] = []
    encode = LlavaTower.encode

    def counted(self: Any, contents: Any, ops: Any) -> Any:
        counts.extend(content.length for content in contents)
        return encode(self, contents, ops)

    monkeypatch.setattr(LlavaTower, "encode", counted)
    return counts


def test_a_picture_is_encoded_once_and_its_prefix_is_found(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model=str(made[0]), **BASE)
    counts = counting(llm, monkeypatch)
    ask = prompt("USER: IMAGE\nwhat is the quick brown fox jumps over the lazy dog", [FIRST])
    (first,) = llm.generate(ask, GREEDY, use_tqdm=False)
    (again,) = llm.generate(ask, GREEDY, use_tqdm=False)
    assert len(counts) == 1 and again.num_cached_tokens and not first.num_cached_tokens
    llm.reset_prefix_cache()
    (other,) = llm.generate(prompt("USER: IMAGE\nsomething else", [FIRST]), GREEDY, use_tqdm=False)
    assert len(counts) == 1, "keys are computed anew, the picture is not"
    (elsewhere,) = llm.generate(prompt("USER: IMAGE\nsomething else", [SECOND]), GREEDY, use_tqdm=False)
    assert len(counts) == 2 and elsewhere.num_cached_tokens == 0, "the same tokens, another picture"
    assert answers([elsewhere]) != answers([other])


def test_what_was_encoded_can_be_forgotten(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while requests run, in the middle of a picture; and counters say what was found."""
    llm = LLM(model=str(made[0]), **BASE, enable_prefix_caching=False, max_num_batched_tokens=8)
    counts = counting(llm, monkeypatch)
    ask = prompt("USER: IMAGE what is it", [FIRST])
    (first,) = llm.generate(ask, GREEDY, use_tqdm=False)
    assert counted(llm) == (1, 0)
    llm.generate([ask, ask], GREEDY, use_tqdm=False)
    assert len(counts) == 1 and counted(llm) == (3, 2)
    for forget in (llm.reset_mm_cache, llm.reset_encoder_cache):
        forget()
        before = len(counts)
        llm.enqueue(ask, GREEDY)
        while len(counts) == before:
            llm.llm_engine.step()
        forget()
        assert answers(llm.wait_for_completion(use_tqdm=False)) == answers([first])
        assert len(counts) == before + 2, "once more for the rest of its tokens"
    assert counted(llm) == (5, 2)


def counted(llm: LLM) -> tuple[int, int]:
    """Contents that requests came to, and those that had been encoded."""
    found = {metric.name: metric.value for metric in llm.get_metrics() if isinstance(metric, Counter)}
    return int(found["vllm:mm_cache_queries"]), int(found["vllm:mm_cache_hits"])


def test_a_picture_whose_tokens_see_each_other_must_fit_into_a_step(tmp_path: Path) -> None:
    llm = LLM(model=str(make_vision("gemma3", tmp_path / "gemma3")), **BASE, max_num_batched_tokens=15)
    with pytest.raises(InvalidRequestError, match="takes 16 tokens; this engine takes at most 15 at once"):
        llm.generate(prompt("IMAGE", [FIRST], "gemma3"), GREEDY, use_tqdm=False)


def test_what_does_not_fit_together_is_said(plain: LLM, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        (prompt("IMAGE IMAGE", [FIRST]), "the prompt has 2 of '<image>', and multi_modal_data.image has 1"),
        (prompt("no sign", [FIRST]), "the prompt has 0 of '<image>'"),
        ({"prompt": "x", "multi_modal_data": {"video": [np.zeros((2, 8, 8, 3), np.uint8)]}}, "this model takes image"),
        ({"prompt": "x", "multi_modal_data": {"smell": 1}}, "multi_modal_data must be"),
        ({"prompt": "<image>", "multi_modal_data": {"image": 7}}, "multi_modal_data.image"),
        ({"prompt_embeds": torch.zeros(3, 64)}, "--enable-prompt-embeds"),
    ]
    for given, message in refused:
        with pytest.raises(InvalidRequestError, match=message):
            plain.generate(given, GREEDY, use_tqdm=False)
    blind = LLM(model=str(make_tiny("llama", tmp_path / "llama")), **BASE)
    with pytest.raises(InvalidRequestError, match="multi_modal_data cannot be used: this model takes text only"):
        blind.generate(prompt("IMAGE", [FIRST]), GREEDY, use_tqdm=False)
