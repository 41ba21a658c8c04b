"""Output that must parse: every engine gives the tokens of a plain one whose logits are masked token by token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence import LLM, RequestOutput, SamplingParams
from cadence.core.grammar import NO_DEFAULTS
from cadence.core.sampling_params import RequestOutputKind
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.engine.llm_engine import LLMEngine
from cadence.structured.compiler import Backends
from cadence.structured.grammar import Grammar
from cadence.structured.llguidance_backend import greedy_encoder
from cadence.structured.vocabulary import Vocabulary
from tests.e2e.test_speculation import DRAFTS, LOOKED_UP, SUFFIX, Request, assert_same, opened, run
from tests.helpers.grammars import compiled
from tests.helpers.tiny_models import VOCAB
from tests.helpers.wide import mostly_wide_rows

pytestmark = pytest.mark.engine

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer"}, "kind": {"enum": ["fox", "dog"]}},
    "required": ["ok", "n", "kind"],
    "additionalProperties": False,
}
OPTIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"json": SCHEMA}, {"temperature": 0, "logprobs": 2}),
    ({"regex": "[a-f]{3,20}(the|fox)[0-9]+"}, {"temperature": 1.0, "repetition_penalty": 1.2}),
    ({"choice": ["the quick brown fox", "the lazy dog", "it"]}, {"temperature": 1.3, "logprobs": 1}),
    ({"grammar": 'root ::= "(" root ")" | "x" | root "+" root'}, {"temperature": 0.9, "logit_bias": {5: 2.0}}),
    ({"grammar": 'start: "a" /[b-d]+/ " end"'}, {"temperature": 1.1, "bad_words": ["b"]}),
    ({"json": SCHEMA, "disable_any_whitespace": True}, {"temperature": 1.0, "n": 2, "logprobs": 1}),
    ({"json_object": True}, {"temperature": 1.0, "stop": ["}"], "max_tokens": 30}),
    ({"json": SCHEMA, "backend": "llguidance"}, {"temperature": 0.7, "min_tokens": 4, "prompt_logprobs": 1}),
]  # fmt: skip


def work() -> list[tuple[Request, dict[str, Any] | None]]:
    """Requests with a constraint each, and some without any between them."""
    made: list[tuple[Request, dict[str, Any] | None]] = []
    for index, (asked, changes) in enumerate(OPTIONS):
        prompt = [(7 * index + 3 * place) % (VOCAB - 5) + 5 for place in range(3 + 5 * index)]
        common = {"seed": index, "max_tokens": 24, "output_kind": RequestOutputKind.FINAL_ONLY}
        made.append(((prompt, SamplingParams(**{**common, **changes})), asked))
        if index % 2:
            made.append(((prompt, SamplingParams(**common, temperature=index / 4, ignore_eos=True)), None))
    return made


def constrained() -> list[Request]:
    found = []
    for (prompt, params), asked in work():
        if asked is not None:
            params.structured_outputs = StructuredOutputsParams(**asked)
        found.append((prompt, params))
    return found


def masked(engine: LLMEngine) -> list[Request]:
    """The same, by a function on the logits instead: it begins anew at every token."""
    tokenizer = engine.get_tokenizer()
    vocabulary = Vocabulary.of(tokenizer, VOCAB, engine.eos_token_ids)
    backends = Backends(vocabulary, greedy_encoder(vocabulary))
    found = []
    for (prompt, params), asked in work():
        if asked is not None:
            grammar = compiled(StructuredOutputsParams(**asked).spec(NO_DEFAULTS), backends)
            params.logits_processors = [mask_with(grammar)]
        found.append((prompt, params))
    return found


def mask_with(grammar: Grammar) -> Callable[[list[int], torch.Tensor], torch.Tensor]:
    def mask(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        matcher = grammar.matcher()
        assert all(map(matcher.accept, output)), output
        words_np = np.zeros(matcher.num_words, dtype=np.int32)
        matcher.fill(words_np)
        allowed_np = np.unpackbits(words_np.view(np.uint8), bitorder="little")[: len(logits)]
        return logits.masked_fill(torch.from_numpy(allowed_np == 0), float("-inf"))

    return mask


@pytest.fixture(scope="module")
def answers(tiny_model: Callable[[str], Path]) -> Callable[[str], list[RequestOutput]]:
    """By family: each request alone, in a plain engine."""

    @cache
    def of(family: str) -> list[RequestOutput]:
        with opened(tiny_model(family)) as plain:
            return [run(plain, [request])[0] for request in masked(plain)]

    return of


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two steps in flight": {"async_scheduling": True},
    "bursts of 4": {"num_scheduler_steps": 4},
    "bursts of 4, two steps in flight": {"num_scheduler_steps": 4, "async_scheduling": True},
    "bursts by themselves": {"num_scheduler_steps": None},
    "prompts in chunks": {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 8},
    "prefixes cached": {"enable_prefix_caching": True},
    "tiny pool": {"num_gpu_blocks_override": 24},
    "tiny pool, bursts of 4, two steps in flight": {
        "num_gpu_blocks_override": 24,
        "num_scheduler_steps": 4,
        "async_scheduling": True,
    },
    "drafts looked up": {"speculative_config": LOOKED_UP},
    "drafts looked up, bursts of 4, two steps in flight": {
        "speculative_config": LOOKED_UP,
        "num_scheduler_steps": 4,
        "async_scheduling": True,
    },
    "drafts by suffixes": {"speculative_config": SUFFIX},
    "drafts by the model itself, two steps in flight": {"async_scheduling": True},
}
PADDED = ("two steps in flight", "bursts of 4, two steps in flight", "drafts looked up", "tiny pool")  # as on a GPU
# Several options together; tests/matrix has every two of them.
SOME = ("tiny pool, bursts of 4, two steps in flight", "drafts looked up, bursts of 4, two steps in flight")
SOME_PADDED = ("bursts of 4, two steps in flight",)


@pytest.mark.parametrize(
    ("way", "graphs"),
    mostly_wide_rows(
        [*((way, "") for way in WAYS), *((way, "padded") for way in PADDED)],
        [*((way, "") for way in SOME), *((way, "padded") for way in SOME_PADDED)],
    ),
)
def test_every_engine_follows_grammars(
    tiny_model: Callable[[str], Path], answers: Callable[[str], list[RequestOutput]], way: str, graphs: str
) -> None:
    directory, options = tiny_model("gemma2"), dict(WAYS[way])
    if "by the model itself" in way:
        options["speculative_config"] = {
            "method": "draft_model", "model": str(directory), "num_speculative_tokens": DRAFTS, "adaptive": False,
        }  # fmt: skip
    expected = answers("gemma2")
    with opened(directory, None, graphs, **options) as engine:
        for _ in range(2):
            found = run(engine, constrained())
            assert_same(found, expected, way)
    if "drafts" in way:
        accepted = [output.speculation.num_accepted for output, (_, asked) in zip(found, work(), strict=True) if asked]
        assert sum(accepted) > 5, "what must parse is drafted, too"


def test_finished_outputs_are_what_was_asked_for(answers: Callable[[str], list[RequestOutput]]) -> None:
    """That the reference is right: of its outputs, those that did not end by their length."""
    finished = 0
    for output, (_, asked) in zip(answers("gemma2"), work(), strict=True):
        for completion in output.outputs:
            if asked is None or completion.finish_reason == "length":
                continue
            finished += 1
            if "regex" in asked:
                assert re.fullmatch(asked["regex"], completion.text)
            elif "choice" in asked:
                assert completion.text in asked["choice"]
            elif "json" in asked:
                assert set(json.loads(completion.text)) == {"ok", "n", "kind"}
    assert finished >= 3


def test_a_refused_grammar_ends_its_own_request(tiny_model: Callable[[str], Path]) -> None:
    with opened(tiny_model("llama"), num_scheduler_steps=4) as engine:
        fine = constrained()[:2]
        broken = SamplingParams(structured_outputs=StructuredOutputsParams(regex="((("), max_tokens=5)
        *others, failed = run(engine, [*fine, ([5, 6], broken)])
        assert_same(others, run(engine, fine), "beside it")
    assert failed.outputs[0].finish_reason == "error"
    assert "structured_outputs.regex" in str(failed.outputs[0].stop_reason)


def test_complete_outputs_end_where_no_stop_token_may(tiny_model: Callable[[str], Path]) -> None:
    """`ignore_eos` and `min_tokens` bar the token that would end them: they end without it, or with it."""
    llm = LLM(str(tiny_model("llama")), max_model_len=128, num_gpu_blocks_override=160, dtype="float32")
    asked = StructuredOutputsParams(choice=["the fox"])
    for options in ({"ignore_eos": True}, {"min_tokens": 20}):
        (output,) = llm.generate(
            [5, 6], SamplingParams(structured_outputs=asked, max_tokens=30, **options), use_tqdm=False
        )
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("the fox", "stop"), options


@pytest.mark.parametrize("of_engine", [False, True])
def test_host_processors_see_forced_tokens_one_by_one(tiny_model: Callable[[str], Path], of_engine: bool) -> None:
    """Nothing is drafted where the host has a say before each token, neither by the grammar nor by looking it up."""
    seen: list[list[int]] = []

    def watch(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(list(output))
        return logits

    llm = LLM(
        str(tiny_model("llama")), max_model_len=128, num_gpu_blocks_override=160, dtype="float32",
        speculative_config=LOOKED_UP, logits_processors=[watch] if of_engine else [],
    )  # fmt: skip
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(choice=["the fox the fox the fox"]), max_tokens=30,
        logits_processors=None if of_engine else [watch],
    )  # fmt: skip
    (output,) = llm.generate([5, 6], params, use_tqdm=False)
    tokens = list(output.outputs[0].token_ids)
    assert len(tokens) > 5 and seen == [tokens[:count] for count in range(len(tokens))]
