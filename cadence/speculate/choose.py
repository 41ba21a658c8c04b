"""Which proposer an engine gets, and which sampler verifies the drafts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from cadence.config.speculative import SpeculativeConfig
from cadence.config.speculative_options import PROBABILISTIC
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import RowState
from cadence.sample.draft_distributions import DraftDistributions, DraftLogits, SureDrafts
from cadence.sample.rejection import RejectionSampler
from cadence.sample.sampler import Sampler, SamplerFactory
from cadence.speculate.draft_model import AnyDraftModel, DraftModel
from cadence.speculate.ngram import NgramProposer
from cadence.speculate.proposer import NoProposer, Proposer
from cadence.speculate.suffix import SuffixProposer

# (what was asked for, ops, most drafts of each row [num_rows] int32, strided)
ProposerFactory = Callable[[SpeculativeConfig, Ops, torch.Tensor], Proposer]


def proposer_of(asked: SpeculativeConfig, ops: Ops, most: torch.Tensor) -> Proposer:
    if not asked.enabled or asked.by_model:
        return NoProposer()
    if asked.method == "suffix":
        return SuffixProposer.of(asked, ops.suffix, most)
    return NgramProposer(ops.rows, most, asked.prompt_lookup_min, asked.prompt_lookup_max)


def sampler_of(asked: SpeculativeConfig, state: RowState, drafts: DraftDistributions) -> SamplerFactory:
    """drafts: what those of the proposer were drawn from"""
    if asked.rejection_sample_method == PROBABILISTIC:
        return partial(RejectionSampler, state=state, drafts=drafts)
    return Sampler


def distributions_of(asked: SpeculativeConfig, num_rows: int, draft: AnyDraftModel) -> DraftDistributions:
    """What drafts are drawn from. draft: the model that makes them, if one does"""
    if asked.rejection_sample_method == PROBABILISTIC and isinstance(draft, DraftModel):
        return DraftLogits(num_rows, asked.num_tokens, draft.proposer.vocabulary.target_ids, torch.float32)
    return SureDrafts()
