"""A proposer that knows what comes: it is told the texts of requests, and its drafts are right as often as asked.

Only tensors are read and written, so a device that records forwards may record it. A CPU records calls into C alone: it
runs the forwards of such an engine op by op, each time anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cadence.config.speculative import SpeculativeConfig
from cadence.device.probe import open_device
from cadence.executor.factory import ExecutorFactory, OpenExecutor, Processors, Resolve, device_caps, open_on
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.speculate.choose import ProposerFactory
from cadence.speculate.proposer import Proposer

_NOTHING = -1  # after the end of a text


class Texts:
    """What requests are going to say, prompts included, and how often drafts say the same. Both may be changed while an
    engine is idle: they are written in place."""

    def __init__(self, vocab_size: int, most: int = 64, max_len: int = 512, device: str = "cpu") -> None:
        """most: texts; max_len: tokens of each"""
        self.vocab_size = vocab_size
        self.tokens = torch.full((most, max_len), _NOTHING, dtype=torch.int32, device=device)
        self.right = torch.ones(1, dtype=torch.float64, device=device)  # probability that a draft is what comes

    def tell(self, texts: Sequence[Sequence[int]], right: float) -> None:
        """These instead of those told before. Where two begin alike, the first is believed until they part."""
        assert len(texts) <= len(self.tokens)
        self.tokens.fill_(_NOTHING)
        for line, text in enumerate(texts):
            self.tokens[line, : len(text)] = torch.tensor(text, dtype=torch.int32)
        self.right.fill_(right)


class ToldProposer(Proposer):
    """Drafts go as far as the row's text, its `most` and its length allow. A row that nothing was told of has none."""

    def __init__(self, texts: Texts, num_tokens: int, most: torch.Tensor) -> None:
        """most [num_rows] int32, strided: drafts of a row, of which no more than `num_tokens`"""
        self._texts = texts
        self._ahead = torch.arange(num_tokens, device=most.device)
        self._most = most

    def propose(self, state: RowState, batch: StepBatch) -> None:
        rows = batch.rows.long()  # [R]
        length = state.num_computed[rows].long() + 1
        text, found = self._text_of(state.tokens[rows], length)
        proposes = found & (batch.line_start.diff() > 0) & (state.quiet[rows] == 0)
        told = (text != _NOTHING).sum(dim=1) - length
        room = torch.minimum(state.max_len[rows] - 1 - length, told).clamp(min=0)
        count = torch.minimum(self._most[rows], room) * proposes
        at = (length[:, None] + self._ahead).clamp(max=text.shape[1] - 1)  # [R, num_tokens] positions of drafts
        drafts, inside = self._drafts(text.gather(1, at), at), self._ahead < count[:, None]
        at = at.clamp(max=state.tokens.shape[1] - 1)
        places = (rows[:, None].expand_as(at), at)
        state.tokens[places] = torch.where(inside, drafts, state.tokens[places])
        state.num_drafts[rows] = count.int()

    def _text_of(self, tokens: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """tokens [R, L], of which `length` [R] are known -> a text that begins with them [R, max_len]; was there one"""
        texts = self._texts.tokens
        width = min(tokens.shape[1], texts.shape[1])
        ahead = torch.arange(width, device=tokens.device) >= length[:, None]
        same = tokens[:, None, :width] == texts[None, :, :width]  # [R, texts, width]
        begins = (same | ahead[:, None]).all(dim=2)
        return texts[begins.int().argmax(dim=1)], begins.any(dim=1)

    def _drafts(self, true: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """true [R, num_tokens]: what comes at positions `at`. A wrong draft is another token of the vocabulary."""
        other = (true + 1 + at.int() % (self._texts.vocab_size - 1)) % self._texts.vocab_size
        return torch.where(_uniform(at) < self._texts.right, true, other)


def _uniform(at: torch.Tensor) -> torch.Tensor:
    """[...] int64 -> in [0, 1), always the same for a position"""
    mixed = at + 1
    for factor in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D):
        mixed = (mixed * factor) & 0xFFFFFFFF
        mixed = mixed ^ (mixed >> 15)
    return mixed.double() / 2**32


def told_proposer(texts: Texts) -> ProposerFactory:
    """For engines whose speculative_config may be any: its method is not asked."""

    def new_proposer(asked: SpeculativeConfig, ops: Ops, most: torch.Tensor) -> ToldProposer:
        return ToldProposer(texts, asked.num_tokens, most)

    return new_proposer


def opening(new_proposer: ProposerFactory, graphs: str = "") -> ExecutorFactory:
    """graphs: "padded" as on a GPU, "" = the device's own."""

    def open_one(kind: str, resolve: Resolve, logits_processors: Processors) -> OpenExecutor:
        config = resolve(device_caps(kind))
        if graphs:
            config = replace(config, device=replace(config.device, graphs=graphs))
        device = open_device(config.device.kind, config.device.cpu_threads)
        return open_on(device, config, logits_processors, new_proposer)

    return open_one


def telling(texts: Texts, graphs: str = "") -> ExecutorFactory:
    return opening(told_proposer(texts), graphs)
