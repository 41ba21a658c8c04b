"""From logits to tokens: the steps in their order, the draw, and the logprobs of what was drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cadence.core.contract.table import RequestTable
from cadence.core.contract.token_masks import TokenMasks
from cadence.core.sampling_params import LogitsProcessor
from cadence.device.base import Device
from cadence.kernels.interface.ops import NO_IDS, Ops
from cadence.sample.bad_words import BadWords
from cadence.sample.bias import AllowedTokens, LogitBias
from cadence.sample.context import LogitsStep, RowStep, SampleContext
from cadence.sample.custom import DeviceProcessors, HostProcessors
from cadence.sample.filters import FLOATS, Temperature, make_filters
from cadence.sample.logprobs import LogprobsTable
from cadence.sample.masks import MaskedRows
from cadence.sample.min_tokens import MinTokens
from cadence.sample.output import SampleOutput
from cadence.sample.params import SamplingTable
from cadence.sample.penalties import Penalties
from cadence.sample.sampler import Choice, Sampler, SamplerFactory
from cadence.sample.speech import SpeechTokens
from cadence.sample.thinking import ThinkingBudget


class SamplePipeline:
    """The only place that names the features of sampling. Steps run in the order in which they are listed.

    A feature is listed once: it is told of rows and has its turn at the logits. Filters, which keep nothing of their
    own, come after them, as `filters.py` lists them.
    """

    tables: list[RequestTable]  # added to, removed from and flushed by the runner

    def __init__(
        self,
        device: Device,
        ops: Ops,
        num_rows: int,
        vocab_size: int,
        logprobs_mode: str = "raw_logprobs",
        logits_processors: Sequence[LogitsProcessor] = (),
        new_sampler: SamplerFactory = Sampler,
    ) -> None:
        self._device = device
        sampling = SamplingTable(device, num_rows, FLOATS)
        self._masks = MaskedRows(device, ops, num_rows)
        features: list[RowStep] = [
            AllowedTokens(device, num_rows),
            BadWords(device, num_rows),
            MinTokens(device, num_rows),
            LogitBias(device, num_rows),
            HostProcessors(num_rows, logits_processors),
            DeviceProcessors(device, num_rows, logits_processors),
            Penalties(device, num_rows),
            ThinkingBudget(device, num_rows),
            SpeechTokens(device, ops, num_rows),
            self._masks,
        ]
        self._logprobs = LogprobsTable(device, num_rows, vocab_size, logprobs_mode)
        self._steps: list[LogitsStep] = [*features, *make_filters(device, sampling, vocab_size)]
        self._beyond_masks = [step for step in self._steps if not isinstance(step, Temperature | MaskedRows)]
        self._sampler = new_sampler(device, ops, sampling)
        self.tables = [sampling, *features, self._logprobs, *self._sampler.tables]

    def only_draws(self, rows_np: np.ndarray) -> bool:
        """Whether `draw` is all these rows need: no step but the temperature, no logprobs."""
        return not self._masks.active(rows_np) and self._only_masked(rows_np)

    def _only_masked(self, rows_np: np.ndarray) -> bool:
        """Whether masks and `draw` are all these rows need."""
        more = self._logprobs.active(rows_np) or self._sampler.beyond_draw(rows_np)
        return not (more or any(step.active(rows_np) for step in self._beyond_masks))

    def post(self, mail: TokenMasks) -> None:
        """What rows of the forward whose tokens are chosen next have waited for."""
        self._masks.post(mail)

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> Choice:
        """For rows that only draw. Nothing depends on the host: it may be captured."""
        return self._sampler.draw(logits, rows, lengths)

    def draw_draft(
        self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor, draft: int, ids: torch.Tensor = NO_IDS
    ) -> Choice:
        """For a model that drafts, as `TokenSampler` has it. It may be captured, too."""
        return self._sampler.draw_draft(logits, rows, lengths, draft, ids)

    def sample(self, logits: torch.Tensor, ctx: SampleContext) -> SampleOutput:
        """logits [S, V], written to."""
        if self._masks.active(ctx.rows_np) and self._only_masked(ctx.rows_np):
            return self._draw_masked(logits, ctx)
        with self._device.torch_on(logits.numel()):
            return self._sample_by_steps(logits.float(), ctx)

    def _sample_by_steps(self, logits: torch.Tensor, ctx: SampleContext) -> SampleOutput:
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
        return SampleOutput(tokens, peaks, scored, ctx.errors)

    def _draw_masked(self, logits: torch.Tensor, ctx: SampleContext) -> SampleOutput:
        self._masks.apply(logits, ctx)
        tokens, peaks = self._sampler.draw(logits, ctx.rows, ctx.lengths)
        return SampleOutput(tokens, [peaks], [], ctx.errors)
