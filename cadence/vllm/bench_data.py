"""Prompts for a benchmark, as scripts for vLLM draw and read them: the prompts of `cadence bench serve`."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from cadence.core.errors import InvalidRequestError
from cadence.core.lora_request import LoRARequest
from cadence.entrypoints.cli.bench_serve import work


@dataclass(frozen=True)
class SampleRequest:
    prompt: str | list[str] | list[dict[str, Any]]
    prompt_len: int  # tokens
    expected_output_len: int | None
    multi_modal_data: None = None
    lora_request: LoRARequest | None = None
    request_id: str | None = None


class BenchmarkDataset(ABC):
    """A tokenizer is Cadence's, or one of `transformers`: texts are encoded and decoded."""

    DEFAULT_SEED: ClassVar[int] = 0
    IS_MULTIMODAL: ClassVar[bool] = False
    OPTIONS: ClassVar[tuple[str, ...]]  # of `sample`

    def __init__(
        self, dataset_path: str | None = None, random_seed: int | None = 0, disable_shuffle: bool = False
    ) -> None:
        self.dataset_path = dataset_path
        self.random_seed = self.DEFAULT_SEED if random_seed is None else random_seed
        self.disable_shuffle = disable_shuffle

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        no_oversample: bool = False,
        **shape: Any,
    ) -> list[SampleRequest]:
        """So many requests; with `no_oversample` no prompt of a file twice. Every call draws the same. shape: those of
        `OPTIONS`"""
        for name in shape:
            if name not in self.OPTIONS:
                raise InvalidRequestError(f"sample has no option {name!r}; known: {', '.join(self.OPTIONS)}", name)
        texts = self._texts(tokenizer, num_requests, shape)[:num_requests]
        drawn = [SampleRequest(text, len(tokenizer.encode(text)), length) for text, length in texts]
        count = min(num_requests, len(drawn)) if no_oversample else num_requests
        chosen = work.repeated(drawn, count, Path(self.dataset_path or ""))
        return [replace(one, request_id=f"{request_id_prefix}{number}") for number, one in enumerate(chosen)]

    @abstractmethod
    def _texts(self, tokenizer: Any, num_requests: int, shape: dict[str, Any]) -> list[tuple[str, int]]:
        """Prompts, and how many tokens to ask for: as many as there are, or at least `num_requests`."""

    def _path(self) -> Path:
        if self.dataset_path is None:
            raise InvalidRequestError(f"{type(self).__name__} needs a dataset_path", "dataset_path")
        return Path(self.dataset_path)


class RandomDataset(BenchmarkDataset):
    """Words, about as many tokens as are asked for: `prompt_len` counts them."""

    OPTIONS = ("prefix_len", "range_ratio", "input_len", "output_len")
    DEFAULT_PREFIX_LEN: ClassVar[int] = 0
    DEFAULT_RANGE_RATIO: ClassVar[float] = 0.0
    DEFAULT_INPUT_LEN: ClassVar[int] = 1024
    DEFAULT_OUTPUT_LEN: ClassVar[int] = 128

    def _texts(self, tokenizer: Any, num_requests: int, shape: dict[str, Any]) -> list[tuple[str, int]]:
        defaults = {"input_len": self.DEFAULT_INPUT_LEN, "output_len": self.DEFAULT_OUTPUT_LEN}
        defaults |= {"range_ratio": self.DEFAULT_RANGE_RATIO, "prefix_len": self.DEFAULT_PREFIX_LEN}
        given: dict[str, Any] = {**defaults, **shape}
        dice = random.Random(self.random_seed)
        units = work.PromptUnits.of(_ids(tokenizer, work.ALL_WORDS), chat=False)
        requests = itertools.islice(work.drawn_requests(units, work.RandomShape(**given), dice), num_requests)
        return [(tokenizer.decode(request.prompt), request.output_len) for request in requests]


class PrefixRepetitionRandomDataset(BenchmarkDataset):
    """Words, about as many tokens as are asked for, of which many prompts begin with one of a few prefixes."""

    OPTIONS = ("prefix_len", "suffix_len", "num_prefixes", "output_len")
    DEFAULT_PREFIX_LEN: ClassVar[int] = 256
    DEFAULT_SUFFIX_LEN: ClassVar[int] = 256
    DEFAULT_NUM_PREFIXES: ClassVar[int] = 10
    DEFAULT_OUTPUT_LEN: ClassVar[int] = 128

    def _texts(self, tokenizer: Any, num_requests: int, shape: dict[str, Any]) -> list[tuple[str, int]]:
        defaults = {"prefix_len": self.DEFAULT_PREFIX_LEN, "suffix_len": self.DEFAULT_SUFFIX_LEN}
        defaults |= {"num_prefixes": self.DEFAULT_NUM_PREFIXES, "output_len": self.DEFAULT_OUTPUT_LEN}
        units = work.PromptUnits.of(_ids(tokenizer, work.ALL_WORDS), chat=False)
        dice, repetition = random.Random(self.random_seed), work.PrefixRepetition(**{**defaults, **shape})
        requests = repetition.requests(units, num_requests, not self.disable_shuffle, dice)
        return [(tokenizer.decode(request.prompt), request.output_len) for request in requests]


class ShareGPTDataset(BenchmarkDataset):
    """First questions of the conversations of a file; as many tokens as their answers have, unless told otherwise."""

    OPTIONS = ("output_len",)

    def _texts(self, tokenizer: Any, num_requests: int, shape: dict[str, Any]) -> list[tuple[str, int]]:
        pairs, length = work.first_exchanges(self._path()), shape.get("output_len")
        if not self.disable_shuffle:
            random.Random(self.random_seed).shuffle(pairs)
        return [(question, length or max(1, len(_ids(tokenizer, answer)))) for question, answer in pairs[:num_requests]]


class CustomDataset(BenchmarkDataset):
    """A JSONL file of prompts. They are chats with one message, written by the tokenizer's template, unless
    `skip_chat_template` is set."""

    OPTIONS = ("output_len", "skip_chat_template")

    def _texts(self, tokenizer: Any, num_requests: int, shape: dict[str, Any]) -> list[tuple[str, int]]:
        requests = work.custom_requests(self._path(), max(0, shape.get("output_len") or 0), chat=False)
        if not self.disable_shuffle:
            random.Random(self.random_seed).shuffle(requests)
        texts = [(_text(request.prompt, self._path()), request.output_len) for request in requests[:num_requests]]
        if not shape.get("skip_chat_template"):
            texts = [(_chat(text, tokenizer), length) for text, length in texts]
        return texts


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _chat(text: str, tokenizer: Any) -> str:
    messages = [{"role": "user", "content": text}]
    written: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return written


def _text(prompt: Any, path: Path) -> str:
    if not isinstance(prompt, str):
        raise InvalidRequestError(f"{path}: a prompt must be a text, not {type(prompt).__name__}", "prompt")
    return prompt
