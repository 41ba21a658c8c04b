"""Experts in the places of transformers', which has their matrices in two stacks: `gate_up_proj` and `down_proj`.

The routers stay transformers' own: families differ in them, and not in what experts compute.
"""

from __future__ import annotations

from typing import Any

import torch

from cadence.kernels.interface.expert_ops import Routing
from cadence.models.interface.build import BuildContext
from cadence.models.layers.experts import Experts, ExpertsSpec
from cadence.models.through_transformers.current import CurrentForward

_UNKNOWN = Routing(top_k=1, renormalise=False, rounded=False)  # a router says so with its routes


class CalledExperts(Experts):
    def __init__(self, build: BuildContext, spec: ExpertsSpec, now: CurrentForward) -> None:
        super().__init__(build, spec)
        del self.router
        self.now = now

    def forward(  # type: ignore[override]
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """x [T, H], ids and shares [T, top_k] -> [T, H]"""
        routes = top_k_index.to(torch.int32).contiguous(), top_k_weights.float().contiguous()
        return self._product.product(hidden_states, routes, self._gelu, self.now.ctx)


def experts_in_place_of(module: Any, build: BuildContext, now: CurrentForward) -> CalledExperts | None:
    """None: it is none, or computes something else."""
    own = dict(module.named_parameters(recurse=False))
    if own.keys() != {"gate_up_proj", "down_proj"} or any(stack.dim() != 3 for stack in own.values()):
        return None
    if not getattr(module, "has_gate", False) or module.is_transposed or not module.is_concatenated:
        return None
    activation = _activation(module)
    if activation is None or module.has_bias or module.has_post_expert_norm:
        return None
    count, hidden, intermediate = own["down_proj"].shape
    if tuple(own["gate_up_proj"].shape) != (count, 2 * intermediate, hidden):
        return None
    return CalledExperts(build, ExpertsSpec(count, hidden, intermediate, activation, _UNKNOWN), now)


@torch.no_grad()
def _activation(module: Any) -> str | None:
    """What its gate computes, seen on random numbers."""
    x = torch.randn((4, 32), generator=torch.Generator().manual_seed(0)) * 4
    gate, up = x.chunk(2, dim=-1)
    given = module._apply_gate(x)
    ways = {"silu": torch.nn.functional.silu(gate), "gelu_pytorch_tanh": torch.nn.functional.gelu(gate, approximate="tanh")}
    return next((name for name, bent in ways.items() if torch.allclose(given, bent * up, 1e-5, 1e-5)), None)
