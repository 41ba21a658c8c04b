"""Tokens sorted by their experts into tiles, each of one expert; there are as many tiles as any routes could need, so
that grids come from sizes the host knows.

Tiles are of one size, whatever the number of tokens, and no product splits a sum: a token's bits do not depend on
others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

TILE_ROWS = 16  # pairs of a token and one of its experts in a tile


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    pairs: torch.Tensor  # [tiles, TILE_ROWS] int32: numbers of pairs; their number = none
    experts: torch.Tensor  # [tiles] int32: from the first on, -1 = an empty tile
    num_pairs: int

    @staticmethod
    def of(ids: torch.Tensor, first: int, count: int) -> ExpertTiles:
        """ids [T, top_k] int32 -> tiles of experts [first, first + count)."""
        num_pairs = ids.numel()
        num_tiles = triton.cdiv(num_pairs, TILE_ROWS) + min(count, num_pairs)
        expert = ids.flatten().long() - first
        expert = torch.where((expert >= 0) & (expert < count), expert, count)  # those of others come last
        order = expert.sort(stable=True)
        sizes = (expert[:, None] == torch.arange(count + 1, device=ids.device)).sum(dim=0)
        tiles = (sizes + TILE_ROWS - 1) // TILE_ROWS
        tile_ends = tiles[:count].cumsum(dim=0)
        begins = sizes.cumsum(dim=0) - sizes
        inside = torch.arange(num_pairs, device=ids.device) - begins[order.values]  # place of a pair in its expert's
        place = (tile_ends - tiles[:count])[order.values.clamp(max=count - 1)] * TILE_ROWS + inside
        place = torch.where(order.values < count, place, num_tiles * TILE_ROWS)  # after all tiles
        pairs = torch.full((num_tiles * TILE_ROWS + 1,), num_pairs, dtype=torch.int32, device=ids.device)
        pairs.scatter_(0, place, order.indices.to(torch.int32))
        numbers = torch.arange(num_tiles, device=ids.device)
        experts = (numbers[:, None] >= tile_ends).sum(dim=1)
        experts = torch.where(experts < count, experts, -1).to(torch.int32)
        return ExpertTiles(pairs[:-1].view(num_tiles, TILE_ROWS), experts, num_pairs)
