"""Which proposer an engine gets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.config.speculative import SpeculativeConfig
from cadence.kernels.interface.ops import Ops
from cadence.speculate.ngram import NgramProposer
from cadence.speculate.proposer import NoProposer, Proposer
from cadence.speculate.suffix import SuffixProposer

# (what was asked for, ops, most drafts of each row [num_rows] int32, strided)
ProposerFactory = Callable[[SpeculativeConfig, Ops, torch.Tensor], Proposer]


def proposer_of(asked: SpeculativeConfig, ops: Ops, most: torch.Tensor) -> Proposer:
    if not asked.enabled:
        return NoProposer()
    if asked.method == "suffix":
        return SuffixProposer.of(asked, ops.suffix, most)
    return NgramProposer(ops.rows, most, asked.prompt_lookup_min, asked.prompt_lookup_max)
