"""What one of several ranks has of an adapter: of each tensor, what goes with its slice of the matrix, as the model has
its rows."""

from __future__ import annotations

import torch

from cadence.lora.adapter import AdaptedModule
from cadence.lora.names import Role
from cadence.lora.targets import Target, TargetKind, TargetPart
from cadence.models.loader.sliced_weights import Cut
from cadence.models.loader.values import scaled

_OF_MATRIX = (Role.B, Role.MAGNITUDE, Role.BASE, Role.SAVED)
_OF_BIAS = (Role.B_BIAS, Role.BIAS, Role.PLAIN_BIAS)


def whole_shapes(rank: int, target: Target, part: TargetPart) -> dict[Role, tuple[int, ...]]:
    """By role, as files have them; of an embedding, vectors are what comes out."""
    return {role: cut.whole for role, cut in _cuts(rank, target, part).items()}


def own_slices(module: AdaptedModule, target: Target, part: TargetPart) -> AdaptedModule:
    """module: of fitting shapes"""
    cuts = _cuts(module.rank, target, part)
    tensors: dict[Role, torch.Tensor] = {role: cuts[role].of(tensor) for role, tensor in module.tensors.items()}
    if target.kind is not TargetKind.EMBEDDING:
        tensors |= {role: _scaled(role, tensor, part) for role, tensor in tensors.items()}
    return AdaptedModule(module.name, tensors, module.scale)


def _scaled(role: Role, tensor: torch.Tensor, part: TargetPart) -> torch.Tensor:
    """Multiplied as what it goes with was when the model was loaded."""
    rule = part.rule if role in _OF_MATRIX else part.bias_rule if role in _OF_BIAS else None
    return tensor if rule is None or not rule.is_scaled else scaled(tensor, rule).to(tensor.dtype)


def _cuts(rank: int, target: Target, part: TargetPart) -> dict[Role, Cut]:
    (num_rows, own_rows), (num_cols, own_cols) = part.stored, target.columns
    ranks, rows, cols = (range(rank),), own_rows, (own_cols,)
    out = Cut((num_cols,), (cols,)) if target.kind is TargetKind.EMBEDDING else Cut((num_rows,), (rows,))
    matrix = Cut((num_rows, num_cols), (rows, cols))
    found = dict.fromkeys(Role, out) | {Role.BASE: matrix, Role.SAVED: matrix}
    return found | {
        Role.A: Cut((rank, num_cols), (ranks, cols)),
        Role.B: Cut((num_rows, rank), (rows, ranks)),
        Role.EMBEDDING_A: Cut((rank, num_rows), (ranks, rows)),
        Role.EMBEDDING_B: Cut((num_cols, rank), (cols, ranks)),
    }
