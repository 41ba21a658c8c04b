"""A sampling pipeline driven by hand, and an oracle in float64."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cadence.core.contract.step import NO_TOKEN, NewRow, TokenLogprobs
from cadence.core.failure import Failure
from cadence.core.sampling_params import SamplingParams
from cadence.device.base import Device
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.sample.context import SampleContext
from cadence.sample.pipeline import SamplePipeline


@dataclass
class Sampled:
    tokens: list[int]
    logprobs: dict[int, TokenLogprobs]
    errors: dict[int, Failure]


class Bench:
    """Rows with a history each. What `sample` draws is not appended to it."""

    def __init__(
        self,
        vocab: int,
        num_rows: int = 8,
        mode: str = "raw_logprobs",
        processors: Sequence[Any] = (),
        hardware: tuple[Device, Ops] | None = None,
    ) -> None:
        self.vocab, self.max_len = vocab, 32
        self.device, ops = hardware or (CpuDevice(), ReferenceOps())
        self.tokens = torch.full((num_rows, self.max_len), vocab - 1, dtype=torch.int32)  # stale tokens lie about
        self.lengths, self.prompt_lens = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
        self.pipeline = SamplePipeline(self.device, ops, num_rows, vocab, mode, processors)

    def add(
        self,
        row: int,
        prompt: Sequence[int] = (0,),
        output: Sequence[int] = (),
        *,
        sampler_seed: int = 0,
        stops: Sequence[int] = (),
        **sampling: Any,
    ) -> None:
        history = np.array([*prompt, *output], np.int32)
        self.tokens[row, : len(history)] = torch.from_numpy(history)
        self.lengths[row], self.prompt_lens[row] = len(history), len(prompt)
        request = NewRow(
            row=row,
            request_id=str(row),
            token_ids_np=history,
            prompt_len=len(prompt),
            num_computed=0,
            block_ids=(),
            sampling=SamplingParams(**sampling),
            seed=sampler_seed,
            stop_token_ids=frozenset(stops),
            max_len=self.max_len,
        )
        for table in self.pipeline.tables:
            table.add(row, request)

    def remove(self, row: int) -> None:
        for table in self.pipeline.tables:
            table.remove(row)

    def sample(self, rows: Sequence[int], logits: Any) -> Sampled:
        context, lines = self.prepare(rows, logits)
        output = self.pipeline.sample(lines, context)
        tokens_np, logprobs, errors = output.unpack(self.device.download(output.tensors()).wait())
        tokens = [NO_TOKEN if line in errors else token for line, token in enumerate(tokens_np.tolist())]
        by_row = ({rows[line]: found for line, found in of_lines.items()} for of_lines in (logprobs, errors))
        return Sampled(tokens, *by_row)

    def prepare(self, rows: Sequence[int], logits: Any) -> tuple[SampleContext, torch.Tensor]:
        for table in self.pipeline.tables:
            table.flush()
        rows_np, up = np.array(rows, np.int32), self.device.upload
        context = SampleContext(
            rows=up(rows_np.astype(np.int64)),
            rows_np=rows_np,
            lengths=up(self.lengths[rows_np]),
            tokens=self.tokens.to(self.device.torch_device),
            prompt_lens=up(self.prompt_lens[rows_np]),
            errors={},
        )
        return context, up(np.array(logits, np.float32).reshape(len(rows), self.vocab))

    def distribution(self, row: int, logits: Any) -> np.ndarray:
        """[V] probabilities the row draws from; needs mode processed_logprobs and logprobs=-1."""
        return by_token(self.sample([row], logits).logprobs[row], self.vocab)


def by_token(logprobs: TokenLogprobs, vocab: int) -> np.ndarray:
    probabilities = np.zeros(vocab)
    probabilities[logprobs.token_ids_np[1:]] = np.exp(logprobs.logprobs_np[1:].astype(np.float64))
    return probabilities


def oracle(logits: Any, prompt: Sequence[int], output: Sequence[int], p: SamplingParams) -> np.ndarray:
    """The distribution these parameters stand for: plain loops over tokens, float64."""
    x = [float(v) for v in np.array(logits, np.float32)]
    for token, count in Counter(output).items():
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
        x[token] -= p.frequency_penalty * count + p.presence_penalty
    for token in set(prompt) - set(output):
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    x = [v / (p.temperature or 1.0) for v in x]
    weights = [math.exp(v - max(x)) for v in x]
    weights = [w if w >= p.min_p else 0.0 for w in weights]
    order = sorted(range(len(x)), key=lambda t: (-weights[t], t))
    if p.top_k:
        order = order[: p.top_k]
    total, mass, kept = sum(weights[t] for t in order), 0.0, []
    for token in order:
        if mass >= p.top_p * total and p.top_p < 1:
            break
        kept.append(token)
        mass += weights[token]
    return np.array([weights[t] / mass if t in kept else 0.0 for t in range(len(x))])


def some_logits(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * 2


# One of every kind, for vocabularies of 300 and more.
MIXED: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"top_k": 5, "logprobs": -1},
    {"top_p": 0.6, "logprobs": 2},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.05, "logprobs": 7},
    {"repetition_penalty": 1.3, "logprobs": 0},
    {"temperature": 0, "frequency_penalty": 1.0, "presence_penalty": 0.5},
    {"allowed_token_ids": [1, 5, 9, 200]},
    {"logit_bias": {3: 50.0}, "temperature": 0},
    {"bad_words_token_ids": [[7], [2, 9]], "temperature": 1.7},
    {"min_tokens": 9, "stops": [0, 1]},
    {"logits_processors": [lambda output, logits: logits.flip(0)], "logprobs": -1},
    {"temperature": 0.01, "min_p": 0.5, "logprobs": -1},
    {"speech_rules": {"first_timestamp": 20, "end_of_text": 10, "suppressed": [3], "suppressed_first": [2]}},
]
