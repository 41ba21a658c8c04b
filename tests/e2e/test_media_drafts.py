"""A model that drafts sees the pictures of a prompt: drafts of the target itself, or of its language model alone, are
all right; a head's logits are those of plain torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from cadence import RequestOutput, SamplingParams
from cadence.config.args import EngineArgs
from cadence.engine.llm_engine import LLMEngine
from cadence.models.heads.eagle3 import Eagle3Head
from cadence.models.heads.fusion import FusionHead
from cadence.models.interface.model import ForwardContext, ModelInputs
from tests.e2e.test_media import FIRST, LONG, SECOND, prompt
from tests.e2e.test_model_drafts import drafts_by
from tests.e2e.test_speculation import BASE as PLAIN
from tests.e2e.test_speculation import DRAFTS, Request, alone, assert_same, num_accepted, opened, run
from tests.helpers import tiny_heads as heads
from tests.helpers.seeing import QwenOracle, SeeingOracle
from tests.helpers.tiny_heads import CONFIG, Ends, Oracle, write
from tests.helpers.tiny_qwen_vl import IMAGE_PAD, make_qwen_vl
from tests.helpers.tiny_vision import make_vision
from tests.helpers.wide import mostly_wide_rows

pytestmark = [pytest.mark.engine, pytest.mark.warm]

GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
BASE: dict[str, Any] = {"max_model_len": 300, "num_gpu_blocks_override": 300}
SEEING = ("llava", "gemma3", "qwen")  # a picture like words; tokens that see each other; positions with axes
PROMPTS = [
    ("USER: IMAGE\nwhat is the quick brown fox ASSISTANT:", [FIRST]),
    ("USER: IMAGE and then IMAGEIMAGE one two three", [SECOND, LONG, FIRST]),
    ("to be or not to be", []),
    ("IMAGE", [SECOND]),
    ("USER: IMAGE\nwhat is the slow river ASSISTANT:", [FIRST]),
]
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "chunks of 5": {"max_num_encoder_tokens": 1, "max_num_batched_tokens": 16, "long_prefill_token_threshold": 5},
    "bursts, padded, cached": {"graphs": "padded", "num_scheduler_steps": 4, "async_scheduling": True,
                               "enable_prefix_caching": True},
    "tiny pool": {"num_gpu_blocks_override": 14, "max_model_len": 200, "async_scheduling": True},
    "two stages": {"pipeline_parallel_size": 2},
    "two ranks": {"tensor_parallel_size": 2},
}  # fmt: skip
ALWAYS = [("llava", "two stages"), ("gemma3", "chunks of 5"), ("qwen", "bursts, padded, cached"), ("qwen", "tiny pool")]

DirectoryOf = Callable[[str], Path]


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> DirectoryOf:
    @cache
    def get(family: str) -> Path:
        to = tmp_path_factory.mktemp(family)
        return make_qwen_vl("2", to) if family == "qwen" else make_vision(family, to)

    return get


def work(family: str) -> list[Request]:
    return [(prompt(text, pictures, family), GREEDY) for text, pictures in PROMPTS]


def drafted(
    directory: Path, config: dict[str, Any], graphs: str = "", **options: Any
) -> AbstractContextManager[LLMEngine]:
    options = {**BASE, **options, "speculative_config": config}
    if {"tensor_parallel_size", "pipeline_parallel_size"} & options.keys():
        return LLMEngine.from_engine_args(EngineArgs.from_options(model=str(directory), **{**PLAIN, **options}))
    return opened(directory, None, graphs, **options)


def check(directory: Path, drafter: Path, requests: list[Request], options: dict[str, Any]) -> list[RequestOutput]:
    """Twice, the second time from caches: what is said without drafts, and every draft is right."""
    given = {name: options[name] for name in ("enable_prompt_embeds",) if name in options}
    with opened(directory, **BASE, **given) as plain:
        expected = alone(plain, requests)
    with drafted(directory, drafts_by(drafter), **options) as engine:
        for _ in range(2):
            found = run(engine, requests)
            if "tensor_parallel_size" not in options:
                assert_same(found, expected, options)
            wrong = [output.speculation.num_drafted - output.speculation.num_accepted for output in found]
            assert max(wrong) < DRAFTS, "but those after a request's last token"
            assert num_accepted(found) > 2 * len(found)
    return found


EVERY = [(family, way) for family in SEEING for way in WAYS if way != "tiny pool" or family == "qwen"]


@pytest.mark.parametrize(("family", "way"), mostly_wide_rows(EVERY, ALWAYS))
def test_a_model_that_sees_drafts_for_itself(family: str, way: str, directory_of: DirectoryOf) -> None:
    directory, options = directory_of(family), dict(WAYS[way])
    if (family, way) == ("gemma3", "chunks of 5"):  # a picture is computed at once
        options |= {"max_num_batched_tokens": 36, "long_prefill_token_threshold": 18}
    found = check(directory, directory, work(family), options)
    if way == "tiny pool":
        assert any(output.metrics and output.metrics.num_preemptions for output in found)


def language_model(directory: Path, to: Path) -> Path:
    """LLaVA's, by itself."""
    from transformers import LlamaForCausalLM, LlavaForConditionalGeneration

    whole = LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    alone = LlamaForCausalLM(whole.config.text_config)
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    alone.lm_head.load_state_dict(whole.lm_head.state_dict())
    alone.save_pretrained(to)
    for path in directory.glob("tokenizer*"):
        shutil.copy(path, to)
    return to


@pytest.mark.parametrize("way", ["chunks of 5", "two stages"])
def test_a_model_without_a_tower_sees_with_the_targets(way: str, directory_of: DirectoryOf, tmp_path: Path) -> None:
    directory = directory_of("llava")
    check(directory, language_model(directory, tmp_path), work("llava"), WAYS[way])


def test_vectors_of_a_prompt_are_the_drafters_too(tiny_model: Callable[[str], Path]) -> None:
    vectors_np = np.random.default_rng(1).normal(0, 0.2, (20, 64))
    request: Request = ({"prompt_embeds": vectors_np}, GREEDY)  # type: ignore[assignment]
    directory = tiny_model("llama")
    check(directory, directory, [request], {"enable_prompt_embeds": True, "long_prefill_token_threshold": 6})


def test_one_with_another_tower_drafts_without_pictures(directory_of: DirectoryOf, tmp_path: Path) -> None:
    directory, requests = directory_of("llava"), work("llava")
    other = make_vision("llava_siglip", tmp_path)
    with opened(directory, **BASE) as plain:
        expected = alone(plain, requests)
    with opened(directory, speculative_config=drafts_by(other), **BASE) as engine:
        assert_same(run(engine, requests), expected, "another tower")


SECTIONS = [2, 3, 3]  # pairs of a head's entries that turn by time, lines and columns
STREAMS = (0, 1, 2)


def eagle(ends: Ends, to: Path, **changes: Any) -> tuple[Path, Oracle]:
    tensors, oracle = heads.eagle(ends, own=False)
    return write(to, tensors, CONFIG | changes), oracle


def eagle_with_axes(ends: Ends, to: Path, **changes: Any) -> tuple[Path, Oracle]:
    return eagle(ends, to, rope_scaling={"type": "mrope", "mrope_section": SECTIONS}, **changes)


def eagle3(ends: Ends, to: Path, **changes: Any) -> tuple[Path, Oracle]:
    tensors, oracle = heads.eagle3(ends, "midlayer.", own_embed=False, before=False)
    config = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": heads.DRAFT_VOCAB} | changes
    return write(to, tensors, config | {"eagle_aux_hidden_state_layer_ids": list(STREAMS)}), oracle


HEADS: dict[str, Any] = {  # its target, its method, how it is made
    "eagle": ("llava", "eagle", eagle, FusionHead),
    "eagle with axes": ("qwen", "eagle", eagle_with_axes, FusionHead),
    "eagle3": ("llava", "eagle3", eagle3, Eagle3Head),
}


@dataclass(frozen=True)
class Seen:
    """What transformers' model made of a text with pictures."""

    ids: list[int]
    vectors: torch.Tensor  # [T, H] of its tokens, pictures in their places
    axes: torch.Tensor  # [axes, T] where its tokens stand
    states: tuple[torch.Tensor, ...]  # [T, H] each, as they enter layers, and last


@torch.inference_mode()
def seen_by(oracle: SeeingOracle | QwenOracle, pictures: list[Image.Image], output: RequestOutput) -> Seen:
    ids = [*(output.prompt_token_ids or []), *output.outputs[0].token_ids]
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones((1, len(ids)), dtype=torch.int64)}
    if isinstance(oracle, QwenOracle):
        inputs |= oracle.pixels(pictures) | {"mm_token_type_ids": (inputs["input_ids"] == IMAGE_PAD).int()}
    else:
        inputs["pixel_values"] = oracle.inputs("<image>" * len(pictures), pictures)["pixel_values"]
    given: dict[str, Any] = {}
    hook = oracle.model.model.language_model.register_forward_pre_hook(
        lambda _, args, kwargs: given.update(kwargs), with_kwargs=True
    )
    states = oracle.model(**inputs, output_hidden_states=True).hidden_states
    hook.remove()
    axes = given["position_ids"].view(-1, len(ids))[-3:] if given.get("position_ids") is not None else torch.empty(0)
    return Seen(ids, given["inputs_embeds"][0], axes, tuple(each[0] for each in states))


@pytest.mark.parametrize("way", ["together", "chunks of 5"])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_sees_what_the_target_sees(
    name: str, way: str, directory_of: DirectoryOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logits of draft 0 where it drafted, after a prompt in which pictures follow each other."""
    (family, method, make, head), number = HEADS[name], 1
    directory, positions, logits = directory_of(family), [0], dict[int, torch.Tensor]()
    oracle = QwenOracle(directory) if family == "qwen" else SeeingOracle(directory)
    forward, of_states = head.forward, head.logits

    def watched(self: Any, inputs: ModelInputs, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> Any:
        positions[0] = int(inputs.rope_positions.max())
        return forward(self, inputs, hidden, ctx, draft)

    def told(self: Any, hidden: torch.Tensor, ctx: ForwardContext, draft: int) -> torch.Tensor:
        found = of_states(self, hidden, ctx, draft)
        if draft == 0:
            logits[positions[0]] = found[0].clone()
        return found

    monkeypatch.setattr(head, "forward", watched)
    monkeypatch.setattr(head, "logits", told)
    table = oracle.model.lm_head.weight.detach()
    made, _ = make(Ends(table, table), tmp_path, vocab_size=len(table))
    options = BASE | WAYS[way] | {"enforce_eager": True}
    with opened(directory, speculative_config=drafts_by(made, method), **options) as engine:
        logits.clear()
        (output,) = run(engine, [work(family)[number]])
    seen = seen_by(oracle, PROMPTS[number][1], output)
    _, plain = make(Ends(seen.vectors, table), tmp_path)  # a token is its place
    hidden = seen.states[-1]
    if method == "eagle3":
        fc = load_file(made / "model.safetensors")["fc.weight"]
        hidden = torch.cat([seen.states[layer] for layer in STREAMS], dim=-1) @ fc.T
    if family == "qwen":
        of_pair = torch.arange(3).repeat_interleave(torch.tensor(SECTIONS))
        monkeypatch.setattr(heads, "angles_of", lambda length: seen.axes[of_pair, :length].T * heads.FREQUENCIES)
    with torch.inference_mode():
        wanted, _ = plain((torch.arange(1, len(seen.ids)), hidden[:-1]), 0)
    begin = len(output.prompt_token_ids or []) - 1
    logits.pop(0, None)  # of a row that has ended
    assert begin <= min(logits) <= begin + 1 and len(logits) > 8
    for position, found in logits.items():
        torch.testing.assert_close(found, wanted[position], atol=3e-4, rtol=1e-3)
