"""Functions that transformers calls in place of its own, under names of ours: attention, and masks.

At work a layer's attention is its `LayerAttention`, and masks are none. In a trial, in shapes alone, an `Observer`
notes what is asked for, under a name that goes with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.nn import functional as F

from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.kernels.interface.ops import Rotation
from cadence.models.through_transformers.current import CurrentForward

AT_WORK = "cadence"  # what `_attn_implementation` of a configuration names
IN_OUTLINE = "cadence_outline"  # and `_experts_implementation`, in shapes alone
_NOT_TURNED = Rotation(torch.empty((0, 0)))  # transformers has turned queries and keys by then
_OURS = "cadence_attention"  # the attribute of an attention module


class Observer(Protocol):
    """Of a trial."""

    def attention(self, module: Any, qkv: tuple[torch.Tensor, ...], mask: Any, asked: dict[str, Any]) -> torch.Tensor:
        """q [1, Hq, T, D], k and v [1, Hk, T, D or less] -> [1, T, Hq, D of v]"""
        ...

    def mask(self, asked: dict[str, Any]) -> torch.Tensor:
        """What stands for a mask until attention is given it."""
        ...


class LayerAttention:
    """What stands in for attention in one layer at work."""

    def __init__(self, now: CurrentForward, index: int, shape: AttentionShape, value_dim: int) -> None:
        """index: among the layers of the cache; value_dim: entries of values, which may be fewer than of keys"""
        self._now = now
        self._index = index
        self._shape = shape
        self._padding = shape.head_dim - value_dim

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """q [1, Hq, T, D], k and v [1, Hk, T, D or less] -> [1, T, Hq, D of v]"""
        now, padding = self._now, self._padding
        if padding:
            value = F.pad(value, (0, padding))
        qkv = (_dense(query[0].transpose(0, 1)), _dense(key[0].transpose(0, 1)), _dense(value[0].transpose(0, 1)))
        attended = now.ctx.attend(self._index, self._shape, qkv, now.inputs.rope_positions, _NOT_TURNED)
        return (attended[..., :-padding] if padding else attended)[None]


def _dense(x: torch.Tensor) -> torch.Tensor:
    """x [T, H, D] -> as the ops take it: heads side by side"""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def put_attention(module: Any, attention: LayerAttention) -> None:
    setattr(module, _OURS, attention)


def register() -> None:
    """Doing it again changes nothing."""
    from transformers import AttentionInterface
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    AttentionInterface.register(AT_WORK, _attend)  # and no mask: it makes none for a name that masks do not know
    ALL_EXPERTS_FUNCTIONS.register(IN_OUTLINE, _outline_experts)


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, None]:
    return getattr(module, _OURS)(query, key, value), None


def _outline_experts(module: Any, hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.zeros_like(hidden)


@contextmanager
def observed(observer: Observer) -> Iterator[str]:
    """-> the name under which the observer is asked"""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    def attend(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **asked: Any
    ) -> tuple[torch.Tensor, None]:
        return observer.attention(module, (query, key, value), attention_mask, asked), None

    def make_mask(**asked: Any) -> torch.Tensor:
        return observer.mask(asked)

    name = f"{AT_WORK}_{id(observer):x}"
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, make_mask)
    try:
        yield name
    finally:
        for interface in (AttentionInterface, AttentionMaskInterface):
            interface._global_mapping.pop(name, None)
