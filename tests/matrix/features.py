"""What may be combined with what: the features, and the cells, one for each pair of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch

from cadence.entrypoints.server.chat.tools.forced import forced_calls
from cadence.entrypoints.server.chat.tools.formats.registry import tool_format


@dataclass(frozen=True)
class Feature:
    name: str
    how: str  # how a user switches it on
    options: dict[str, Any] = field(default_factory=dict)  # of `LLM(...)`, or of `SamplingParams`


def _echo_on_device(
    tokens: torch.Tensor, lengths: torch.Tensor, prompt_lens: torch.Tensor, logits: torch.Tensor
) -> torch.Tensor:
    """Pushes a token that the last one names. logits [n, V]"""
    last = tokens.gather(1, lengths[:, None].long() - 1).long()
    return logits.scatter_add(1, (last * 7 + prompt_lens[:, None]) % logits.shape[1], torch.full(last.shape, 4.0))


_echo_on_device.on_device = True  # type: ignore[attr-defined]


def _echo_on_host(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Pushes a token that all tokens so far name. logits [V]"""
    logits[(sum(prompt) + 3 * sum(output)) % len(logits)] += 4.0
    return logits


def _call() -> dict[str, Any]:
    """A call as a chat demands it, of a format whose calls are JSON. Without the marks around them, so that the few
    tokens of a request get to the arguments."""
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in ("f", "g", "th")]
    form = tool_format("apertus").form
    assert form is not None
    calls = forced_calls(replace(form, open="", close=""), tools, several=True)
    return {"structural_tag": {"type": "structural_tag", "format": calls}}


PLAIN: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 64,
    "block_size": 8,
    "max_num_seqs": 192,
    "max_num_batched_tokens": 8192,
    "num_gpu_blocks_override": 3000,
    "enable_prefix_caching": False,
    "num_scheduler_steps": 1,
    "async_scheduling": False,
}
TINY_POOL = 48  # blocks; the requests of the second batch would take hundreds
CHUNK = 8  # tokens

MULTI_STEP = Feature("multi-step 4", "`num_scheduler_steps=4`", {"num_scheduler_steps": 4})
AUTOMATIC = Feature("automatic multi-step", "the default", {"num_scheduler_steps": None})
ASYNC = Feature("async scheduling", "the default on a GPU; `async_scheduling=True`", {"async_scheduling": True})
CHUNKED = Feature(
    "chunked prefill",
    "the default; `max_num_batched_tokens`, `long_prefill_token_threshold`",
    {"max_num_batched_tokens": 192, "long_prefill_token_threshold": CHUNK},
)
PREFIX = Feature("prefix caching", "the default", {"enable_prefix_caching": True})
PREEMPTION = Feature("preemption", "happens when KV blocks run out", {"num_gpu_blocks_override": TINY_POOL})
GRAPHS = Feature("graphs", "the default on a GPU; off with `enforce_eager=True`")
ABORT = Feature("abort", "`abort_request(id)`, or a client that hangs up")
SPECULATION = Feature(
    "speculation",
    "`speculative_config`",
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}},
)
ITSELF = "the model itself"  # where a feature names a second model
MODEL_DRAFTS = Feature(
    "drafts by a model",
    "`speculative_config` with a `model`",
    {"speculative_config": {"method": "draft_model", "model": ITSELF, "num_speculative_tokens": 3, "adaptive": False}},
)
STAGES = Feature("pipeline stages", "`pipeline_parallel_size`", {"pipeline_parallel_size": 2, "async_scheduling": True})
FP8_CACHE = Feature("fp8 KV cache", "`kv_cache_dtype`; a checkpoint made for it", {"kv_cache_dtype": "fp8"})
INT4_CACHE = Feature("int4 KV cache", "`kv_cache_dtype`, on the CPU", {"kv_cache_dtype": "int4"})
SLEEP = Feature("sleep", "`LLM.sleep`, `wake_up`; `/sleep`")
ENGINE = (
    *(MULTI_STEP, AUTOMATIC, ASYNC, CHUNKED, PREFIX, PREEMPTION, GRAPHS, ABORT, SPECULATION, MODEL_DRAFTS),
    *(STAGES, FP8_CACHE, INT4_CACHE, SLEEP),
)
CACHES = frozenset({FP8_CACHE.name, INT4_CACHE.name})  # they give other numbers: those of a plain engine with the same

GREEDY = Feature("greedy", "`temperature=0`", {"temperature": 0.0})
SEEDED = Feature("seeded temperature", "`temperature`, `seed`", {"temperature": 1.2})
FILTERS = Feature("top-k, top-p, min-p", "`top_k`, `top_p`, `min_p`", {"top_k": 40, "top_p": 0.8, "min_p": 0.01})
PENALTIES = Feature(
    "penalties",
    "`repetition_penalty`, `presence_penalty`, `frequency_penalty`",
    {"repetition_penalty": 0.5, "presence_penalty": -1.5, "frequency_penalty": 0.4},
)
BIAS = Feature("logit bias", "`logit_bias`", {"logit_bias": {5: 4.0, 9: -100.0, 60: 5.0, 77: 5.0, 200: 4.5}})
ALLOWED = Feature("allowed tokens", "`allowed_token_ids`", {"allowed_token_ids": list(range(10, 120))})
BAD_WORDS = Feature("bad words", "`bad_words`", {"bad_words": [*map(chr, range(33, 127)), "the q", "to be"]})
MIN_TOKENS = Feature(
    "min tokens, stop ids",
    "`min_tokens`, `stop_token_ids`",
    {"min_tokens": 5, "stop_token_ids": list(range(3, 320, 5))},
)
LOGPROBS = Feature("logprobs", "`logprobs`", {"logprobs": 3})
LOGPROB_IDS = Feature("logprobs by id", "`logprob_token_ids`", {"logprobs": 3, "logprob_token_ids": [5, 60, 200]})
PROMPT_LOGPROBS = Feature("prompt logprobs", "`prompt_logprobs`", {"prompt_logprobs": 2})
SEVERAL = Feature("n > 1", "`n`", {"n": 2})
BEAM = Feature("beam search", "`LLM.beam_search`")
THINKING = Feature(
    "thinking budget",
    "`thinking_token_budget`",
    {"thinking_token_budget": 3, "thinking_token_ids": [[], [7, 8]]},
)
STOP = Feature("stop strings", "`stop`", {"stop": ["e", "a", "o", "th"]})
ON_DEVICE = Feature(
    "device processor", "`logits_processors`, with `on_device = True`", {"logits_processors": [_echo_on_device]}
)
ON_HOST = Feature("host processor", "`logits_processors`", {"logits_processors": [_echo_on_host]})
JSON_SCHEMA = Feature(
    "JSON schema",
    "`structured_outputs` with `json`; `response_format`",
    {
        "structured_outputs": {
            "json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            "disable_any_whitespace": True,
        }
    },
)
REGEX = Feature("regex", "`structured_outputs` with `regex`", {"structured_outputs": {"regex": "[a-z ]{3,}[0-9]?"}})
FORCED_CALL = Feature(
    "forced tool call", "`tools` with a `tool_choice` of `required` or by name", {"structured_outputs": _call()}
)
ONE_TOKEN = Feature("one token", "`max_tokens=1`", {"max_tokens": 1})
LORA = Feature("LoRA", "`enable_lora=True`, and a `lora_request`")
TWO_LORAS = Feature("two LoRAs in one batch", "`max_loras`, and another `lora_request` beside the first")
EMBEDDING = Feature("embedding", "`LLM.embed`, `encode`; `/v1/embeddings`")
REQUEST = (
    *(GREEDY, SEEDED, FILTERS, PENALTIES, BIAS, ALLOWED, BAD_WORDS, MIN_TOKENS, LOGPROBS, LOGPROB_IDS),
    *(PROMPT_LOGPROBS, SEVERAL, BEAM, THINKING, STOP, ON_DEVICE, ON_HOST, ONE_TOKEN, JSON_SCHEMA, REGEX),
    *(FORCED_CALL, EMBEDDING, LORA, TWO_LORAS),
)
ADAPTERS = frozenset({LORA.name, TWO_LORAS.name})  # each is a request with an adapter of its own
FOR_ADAPTERS: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}  # of engines that run them
GRAMMARS = frozenset({JSON_SCHEMA.name, REGEX.name, FORCED_CALL.name})
CROSS = Feature("cross attention", "a model with an encoder: `encoder_prompt`, audio")
PICTURES = Feature("pictures", "a model that sees: `multi_modal_data`, `image_url`")
STATES = Feature("states", "a model with layers that keep a state in place of keys: Mamba, Jamba")
MODEL = (CROSS, PICTURES, STATES)
FEATURES = {feature.name: feature for feature in MODEL + ENGINE + REQUEST}

Cell = tuple[str, str]  # names, in the order of the lists above
CELLS: tuple[Cell, ...] = tuple(combinations(FEATURES, 2))

# One engine, or one request, cannot be both. Requests then run side by side in one batch; of engines there are two.
ONE_OR_OTHER: dict[Cell, str] = {
    (MULTI_STEP.name, AUTOMATIC.name): "the length of bursts is asked for, or chosen",
    (SPECULATION.name, MODEL_DRAFTS.name): "drafts are looked up, or made by a model",
    (FP8_CACHE.name, INT4_CACHE.name): "a cache has one type",
    (GREEDY.name, SEEDED.name): "a temperature is 0, or it is not",
    (GREEDY.name, SEVERAL.name): "greedy completions would all be the same, so more than one is refused",
    **{cell: "the output is held to one grammar" for cell in CELLS if set(cell) <= GRAMMARS},
    (LORA.name, TWO_LORAS.name): "a request has one adapter",
    **{
        cell: "a search has no sampling options; it runs beside requests that do"
        for cell in CELLS
        if BEAM.name in cell and set(cell) <= {feature.name for feature in REQUEST} - ADAPTERS
    },
    **{
        cell: "a request is for a text or for an embedding"
        for cell in CELLS
        if EMBEDDING.name in cell and set(cell) <= {feature.name for feature in REQUEST} - ADAPTERS
    },
}

# Pairs that no model has, or that are refused in a sentence (tests/e2e/test_encoder_decoder.py).
REFUSED: dict[Cell, str] = {
    (CROSS.name, PICTURES.name): "a model has an encoder, or it sees",
    (CROSS.name, STATES.name): "a model has an encoder, or it keeps states",
    (PICTURES.name, STATES.name): "a model sees, or it keeps states",
    (CROSS.name, EMBEDDING.name): "a model with an encoder gives texts",
}

# Beside which other feature of an engine one shows less than it does alone, or not at all.
DULLED_BY: dict[str, frozenset[str]] = {
    MULTI_STEP.name: frozenset({PREEMPTION.name}),  # bursts shrink
    AUTOMATIC.name: frozenset({PREEMPTION.name, CHUNKED.name, STAGES.name}),  # rows wait, or take turns instead
    PREFIX.name: frozenset({PREEMPTION.name, SLEEP.name}),  # cached blocks are taken by others, or forgotten
    PREEMPTION.name: frozenset({MODEL_DRAFTS.name}),  # blocks reserved for drafts keep others out
    STAGES.name: frozenset({PREEMPTION.name}),  # too few rows for every stage
    CHUNKED.name: frozenset({PREFIX.name}),  # of a prompt whose beginning is cached, one chunk is left
}


def dulled(name: str, point: Collection[str]) -> bool:
    return bool(DULLED_BY.get(name, frozenset()) & {*point})


def name_of(cell: Cell) -> str:
    return " x ".join(cell)


def is_engine(name: str) -> bool:
    return FEATURES[name] in ENGINE


def is_model(name: str) -> bool:
    return FEATURES[name] in MODEL
