"""Forwards of rows that keep states: streams of tokens, cut into runs in many ways, some with drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.kernels.interface.state_ops import StateOps
from tests.helpers.state_cases import StateCase, drawn, runs_of

QUIET = (0, 0, 0)


@dataclass(frozen=True)
class Plan:
    """forwards: of each, by row in the order of its runs, how many tokens are certain, how many drafts come after
    them, and how many of these turn out right. A quiet row has one token."""

    forwards: tuple[dict[int, tuple[int, int, int]], ...]

    @property
    def most_drafts(self) -> int:
        return max(drafts for runs in self.forwards for _, drafts, _ in runs.values())


@dataclass
class Followed:
    outputs: dict[int, torch.Tensor]  # of each row's stream, [tokens, ...]
    states: torch.Tensor  # of all rows but the dummy, after the last forward
    tables: tuple[torch.Tensor, ...]


def follow(ops: StateOps, case: StateCase, plan: Plan, dtype: torch.dtype, device: str = "cpu") -> Followed:
    """Row r's stream is drawn from r alone; what rejected drafts are, from the forward."""
    rows = sorted({row for runs in plan.forwards for row in runs})
    length = {row: sum(certain + right for runs in plan.forwards for certain, _, right in [runs.get(row, QUIET)])
              for row in rows}  # fmt: skip
    streams = {row: drawn(100 + row, length[row] + 1, case.width).to(device, dtype) for row in rows}
    tables = case.tables(max(rows) + 2, plan.most_drafts)
    at, replayed = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0)
    outputs: dict[int, list[torch.Tensor]] = {row: [] for row in rows}
    for number, runs in enumerate(plan.forwards):
        counts, pieces, good = [], [], []
        for row, (certain, drafts, right) in runs.items():
            tokens = max(certain + drafts, 1)
            piece = drawn(1000 * number + row, tokens, case.width).to(device, dtype)
            piece[: certain + right] = streams[row][at[row] : at[row] + certain + right]
            counts.append((row, tokens, replayed[row] if certain else 0, certain, drafts))
            pieces.append(piece)
            good.append(certain + right)
        padding = torch.full((2, case.width), 5.0, dtype=dtype, device=device)
        found = case.call(ops, torch.cat([*pieces, padding]), tables, runs_of(counts, device))
        assert found.dtype is dtype and found.is_contiguous()
        for (row, tokens, _, certain, _), part, count in zip(
            counts, found[:-2].split([count[1] for count in counts]), good, strict=True
        ):
            assert part.shape[0] == tokens
            outputs[row].append(part[:count])
            at[row] += count
            replayed[row] = count - certain if certain else replayed[row]
    return Followed(
        {row: torch.cat(parts) for row, parts in outputs.items()}, case.lasting(tables)[: max(rows) + 1], tables
    )


# Two rows and, in the second of them, drafts: a prompt in one piece, drafts of which some are right, a quiet forward,
# single tokens, more tokens at once.
DRAFTED = Plan(
    (
        {1: (5, 0, 0), 0: (3, 2, 1)},
        {0: (1, 0, 0), 1: (1, 2, 0)},
        {1: QUIET, 0: (1, 2, 2)},
        {1: (1, 0, 0), 0: (2, 0, 0)},
        {0: (1, 0, 0), 1: (1, 0, 0)},
    )
)
# The same streams in other pieces and in other company.
ELSEWISE = Plan(
    (
        {1: (1, 0, 0)},
        {1: (5, 2, 1), 0: (4, 0, 0)},
        {0: (3, 0, 0), 2: (4, 0, 0)},
        {0: (1, 0, 0), 1: (1, 0, 0)},
        {0: (2, 0, 0)},
        {0: (1, 0, 0)},
    )
)
