"""Experts in the places of transformers', which has their matrices in two stacks: `gate_up_proj` and `down_proj`.

The routers stay transformers' own: families differ in them, and not in what experts compute.
"""

from __future__ import annotations

from typing import Any

import torch

from cadence.kernels.interface.expert_ops import Routing
from cadence.kernels.interface.ops import Activation
from cadence.models.interface.build import BuildContext
from cadence.models.layers.experts import Experts, ExpertsSpec
from cadence.models.through_transformers.activation import CalledActivation
from cadence.models.through_transformers.current import CurrentForward

_GATES = {Activation.SILU: "silu", Activation.GELU_TANH: "gelu_pytorch_tanh"}
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


def _activation(module: Any) -> str | None:
    """What its gate computes."""
    from transformers.integrations.moe import _default_apply_gate

    act = getattr(module, "act_fn", None)
    if type(module)._apply_gate is not _default_apply_gate or not isinstance(act, CalledActivation):
        return None
    return _GATES.get(act.kind)
