"""From logits to tokens: the steps in their order, the draw, and the logprobs of what was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.core.sampling_params import LogitsProcessor
from cadence.core.table import RequestTable
from cadence.device.base import Device
from cadence.kernels.ops import Ops
from cadence.sample.bad_words import BadWords
from cadence.sample.bias import AllowedTokens, LogitBias
from cadence.sample.context import LogitsStep, SampleContext
from cadence.sample.custom import CustomProcessors
from cadence.sample.filters import MinP, Temperature, TopK, TopP
from cadence.sample.logprobs import LogprobsTable
from cadence.sample.min_tokens import MinTokens
from cadence.sample.output import SampleOutput
from cadence.sample.params import SamplingTable
from cadence.sample.penalties import Penalties
from cadence.sample.sampler import Sampler


class SamplePipeline:
    """The only place that names the features of sampling. Steps run in the order in which they are listed."""

    tables: list[RequestTable]  # added to, removed from and flushed by the runner

    def __init__(
        self,
        device: Device,
        ops: Ops,
        num_rows: int,
        vocab_size: int,
        logprobs_mode: str = "raw_logprobs",
        logits_processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        sampling = SamplingTable(device, num_rows)
        allowed, bad_words = AllowedTokens(device, num_rows), BadWords(device, num_rows)
        min_tokens, bias = MinTokens(device, num_rows), LogitBias(device, num_rows)
        custom, penalties = CustomProcessors(num_rows, logits_processors), Penalties(device, num_rows)
        filters: list[LogitsStep] = [
            Temperature(sampling),
            MinP(device, sampling),
            TopK(device, sampling, vocab_size),
            TopP(device, sampling, vocab_size),
        ]
        self._logprobs = LogprobsTable(device, num_rows, vocab_size, logprobs_mode)
        self._steps: list[LogitsStep] = [allowed, bad_words, min_tokens, bias, custom, penalties, *filters]
        self._sampler = Sampler(device, ops, sampling)
        self.tables = [sampling, allowed, bad_words, min_tokens, bias, custom, penalties, self._logprobs]

    def sample(self, logits: torch.Tensor, ctx: SampleContext) -> SampleOutput:
        """logits [S, V] float32, written to. One line per row of the context."""
        steps = [step for step in self._steps if step.active(ctx.rows_np)]
        peaks = [logits.amax(dim=-1)] if steps else []  # a step may hide what the model did wrong
        asked = self._logprobs.take(logits, ctx) if self._logprobs.raw else []
        for step in steps:
            logits = step.apply(logits, ctx)
        if not self._logprobs.raw:
            asked = self._logprobs.take(logits, ctx)
        tokens, best = self._sampler.choose(logits, ctx)
        peaks.append(best)
        scored = [group.score(tokens, self._logprobs.as_logits) for group in asked]
        return SampleOutput(ctx.rows_np, tokens, peaks, scored, ctx.errors)
