"""A target and its proposer on one sequence, by hand: every forward in plain sight, keys of both in the same blocks."""

from __future__ import annotations

import torch

from cadence.core.model.kv_spec import plan_layout
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.decoder import DecoderLM
from cadence.models.interface.aux_hidden import AuxHiddenStates
from cadence.models.interface.model import ForwardContext, LayerCache, ModelInputs
from cadence.models.interface.model_proposer import ModelProposer, TargetStates
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens, Wanted
from cadence.runner.caches.storage import allocate_kv_cache
from cadence.speculate.draft_model import DraftModel

BLOCK, LENGTH = 16, 256


class DraftedSequence:
    def __init__(self, target: DecoderLM, proposer: ModelProposer, ops: Ops | None = None) -> None:
        self.ops = ops or ReferenceOps()
        self.target = target
        layers = target.kv_layers()
        num_ids = target.vocab_size if proposer.ahead else len(proposer.vocabulary.target_ids)
        self.draft = DraftModel(proposer, num_ids, len(layers), LENGTH)
        self.layout = plan_layout(layers + proposer.kv_layers(), BLOCK, "float32")
        per_group = LENGTH // BLOCK
        groups = len(self.layout.groups)
        caches = allocate_kv_cache(self.layout, 1 + groups * per_group, CpuDevice(1))
        self._caches = (caches[: len(layers)], self.draft.caches(caches))
        order = torch.randperm(groups * per_group, generator=torch.Generator().manual_seed(1)) + 1
        self._tables = tuple(part[None].int() for part in order.view(groups, per_group))
        self.tokens: list[int] = []
        self._states: list[tuple[torch.Tensor, ...]] = []  # of the target, what the proposer begins with, by position

    @torch.inference_mode()
    def feed(self, ids: list[int]) -> torch.Tensor:
        """The target computes these tokens -> its logits [len(ids), vocab]."""
        positions = torch.arange(len(self.tokens), len(self.tokens) + len(ids))
        self.tokens += ids
        aux = AuxHiddenStates(self.draft.proposer.aux_layers)
        ctx = self._context(self._caches[0], positions, EVERY_TOKEN, aux)
        hidden = self.target(inputs_of(ids, positions), ctx)
        states = aux.states if self.draft.proposer.begins_with is TargetStates.AUX else (hidden,)
        self._states += zip(*states, strict=True)
        return self.target.logits(hidden, ctx)

    @torch.inference_mode()
    def propose(self, chosen: int, count: int, first: int = 0) -> tuple[list[int], torch.Tensor]:
        """The target chose a token after those it has computed. The proposer computes its part of them, from position
        `first` on, and then drafts -> (greedy drafts, their logits [count, draft vocabulary])."""
        proposer = self.draft.proposer
        known = [min(token, self.draft.vocab_size - 1) for token in (*self.tokens, chosen)]
        positions = torch.arange(first, len(known) - proposer.ahead)
        ids = known[first + proposer.ahead :]
        wanted = self._last(positions)
        hidden = proposer.combine(self.states(first), self.context(positions, EVERY_TOKEN))
        drafts, lines = [], []
        for draft in range(count):
            ctx = self.context(positions, wanted)
            for_logits, hidden = proposer.forward(inputs_of(ids, positions), hidden, ctx, draft)
            lines.append(proposer.logits(for_logits, ctx, draft))
            ids = [int(proposer.vocabulary.target_ids[lines[-1][0].argmax()])]
            drafts += ids
            positions, wanted = positions[-1:] + 1, EVERY_TOKEN
        return drafts, torch.cat(lines)

    def states(self, first: int) -> tuple[torch.Tensor, ...]:
        """What the proposer begins with, of positions from `first` on, [T, H] each."""
        return tuple(torch.stack(part[first:]) for part in zip(*self._states, strict=True))

    def context(self, positions: torch.Tensor, wanted: Wanted) -> ForwardContext:
        """Of a forward of the proposer."""
        return self._context(self._caches[1], positions, wanted)

    def _last(self, positions: torch.Tensor) -> LastTokens:
        length = torch.tensor([int(positions[-1]) + 1], dtype=torch.int32)
        at, counted = torch.tensor([len(positions) - 1]), torch.arange(2, dtype=torch.int32)
        return LastTokens(at, torch.zeros(1, dtype=torch.int32), length, counted)

    def _context(
        self, caches: list[LayerCache], positions: torch.Tensor, wanted: Wanted, aux: AuxHiddenStates | None = None
    ) -> ForwardContext:
        count = len(positions)
        slots = tuple(table[0, positions // BLOCK].long() * BLOCK + positions % BLOCK for table in self._tables)
        batch = AttentionBatch(
            rows=torch.zeros(1, dtype=torch.int32),
            query_start=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([int(positions[-1]) + 1], dtype=torch.int32),
            block_tables=self._tables,
            slots=slots,
            num_single=int(count == 1),
            max_query_len=count,
        )
        return ForwardContext(self.ops, batch, caches, wanted, aux or AuxHiddenStates())


def inputs_of(ids: list[int], positions: torch.Tensor) -> ModelInputs:
    return ModelInputs(torch.tensor(ids, dtype=torch.int32), positions)
