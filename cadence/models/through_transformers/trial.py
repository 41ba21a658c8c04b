"""What a model's attention layers are, seen by running transformers' code once in shapes alone.

Nothing is read off names or attributes: each call of attention shows the sizes of its heads, its scale, its cap and the
mask that it was given. What our attention does not compute is refused here, in one sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from cadence.core.errors import ConfigError
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models.interface.build import BuildContext
from cadence.models.through_transformers.functions import Unsteady
from cadence.models.through_transformers.outline import said_by_transformers, settled
from cadence.models.through_transformers.registered import observed

_TOKENS = 3  # of the trial: any number that no size is taken for
# What a call may name and our attention has no use for: it is told otherwise, or concerns training, or other kernels.
_IDLE = {
    "dropout", "scaling", "is_causal", "sliding_window", "softcap", "position_ids", "cache_position", "use_cache",
    "output_attentions", "output_hidden_states", "return_dict", "deterministic", "position_embeddings",
    "output_router_logits", "input_ids", "layer_idx",
}  # fmt: skip
_PROBES = 16  # positions, beside the last ones, at which a mask is looked at


@dataclass(frozen=True, slots=True)
class ObservedAttention:
    """One layer, in the order in which layers attend."""

    module: Any
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int  # 0 = none
    softcap: float  # 0 = none

    def shape(self, build: BuildContext) -> AttentionShape:
        return AttentionShape(
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.scale,
            window=build.window(self.window),
            softcap=self.softcap,
        )


@dataclass(frozen=True, slots=True)
class ObservedMask:
    window: int  # 0 = none
    why_not: str  # "" = our attention computes it


class Trial:
    """An `Observer`."""

    def __init__(self, max_len: int) -> None:
        """max_len: tokens of a sequence, at most"""
        self._max_len = max_len
        self.layers: list[ObservedAttention] = []
        self._masks: dict[int, tuple[torch.Tensor, ObservedMask]] = {}  # by what stands for each, which is kept alive

    def attention(self, module: Any, qkv: tuple[torch.Tensor, ...], mask: Any, asked: dict[str, Any]) -> torch.Tensor:
        q, k, v = qkv
        extra = sorted(name for name, value in asked.items() if value is not None and name not in _IDLE)
        if extra:
            raise ConfigError(f"its attention takes {extra[0]!r}, which ours does not compute", "architectures")
        if asked.get("is_causal") is False or getattr(module, "is_causal", True) is False:
            raise ConfigError("its tokens see each other both ways", "architectures")
        if q.shape[:3:2] != (1, _TOKENS) or k.shape[:3:2] != (1, _TOKENS) or k.shape[3] != q.shape[3]:
            shapes = f"queries {list(q.shape)}, keys {list(k.shape)}"
            raise ConfigError(f"attention over other keys than those of its tokens ({shapes})", "architectures")
        if v.shape[3] > k.shape[3]:
            raise ConfigError(f"values of {v.shape[3]} entries beside keys of {k.shape[3]}", "architectures")
        scale = asked.get("scaling")
        self.layers.append(
            ObservedAttention(
                module=module,
                heads=q.shape[1],
                kv_heads=k.shape[1],
                head_dim=q.shape[3],
                value_dim=v.shape[3],
                scale=q.shape[3] ** -0.5 if scale is None else float(scale),
                window=self._window(mask, asked.get("sliding_window")),
                softcap=float(asked.get("softcap") or 0.0),
            )
        )
        return q.new_empty((1, _TOKENS, q.shape[1], v.shape[3]))

    def mask(self, asked: dict[str, Any]) -> torch.Tensor:
        stand_in = torch.empty((1, 1, _TOKENS, _TOKENS), dtype=torch.bool, device="meta")
        self._masks[id(stand_in)] = (stand_in, seen_through(asked["mask_function"], self._max_len))
        return stand_in

    def _window(self, mask: Any, asked: Any) -> int:
        """By what the layer was given; a window that a call names counts as well."""
        named = 0 if asked is None or int(asked) >= self._max_len else int(asked)
        if mask is None:
            return named
        if id(mask) not in self._masks:
            raise ConfigError("it masks attention in a way of its own", "architectures")
        found = self._masks[id(mask)][1]
        if found.why_not:
            raise ConfigError(found.why_not, "architectures")
        return min(found.window, named) if found.window and named else found.window or named


def seen_through(mask_function: Callable[..., Any], max_len: int) -> ObservedMask:
    """A mask function of transformers, (batch, head, query, key) -> bool, looked at from some positions of a sequence
    of so many tokens."""
    step = max(max_len // _PROBES, 1)
    windows = set()
    zero = torch.zeros(1, dtype=torch.int64)
    for position in sorted({*range(0, max_len, step), *range(min(max_len, 4)), max_len - 1}):
        keys = torch.arange(min(max_len, position + 3))
        seen = torch.as_tensor(mask_function(zero, zero, torch.tensor([position]), keys)).expand(len(keys))
        count = int(seen.sum())
        if bool(seen[position + 1 :].any()):
            return ObservedMask(0, "its tokens see some that come after them")
        if not count or not bool(seen[position + 1 - count : position + 1].all()):
            return ObservedMask(0, "its tokens see some earlier ones and not others in between")
        windows.add(0 if count == position + 1 else count)
    windows.discard(0)
    if len(windows) > 1:
        return ObservedMask(0, "its tokens see pieces of a text, whose lengths differ")
    return ObservedMask(windows.pop() if windows else 0, "")


@dataclass(frozen=True, slots=True)
class Observed:
    layers: list[ObservedAttention]
    looked_into: list[nn.Module]  # linear maps whose weights other modules read
    unsteady: bool  # functions of torch are called whose bits depend on where a number lies


def observe(base: Any, configs: Iterable[Any], max_len: int) -> Observed:
    """base: the model without its head, in shapes alone; configs: those of all its parts"""
    if "position_ids" not in inspect.signature(base.forward).parameters:
        raise ConfigError("it takes no positions, so that its texts cannot share a forward", "architectures")
    trial, configs = Trial(max_len), list(configs)
    before = [config._attn_implementation for config in configs]
    looked_into: list[nn.Module] = []
    calls = Unsteady()
    with said_by_transformers(), observed(trial) as name, settled(base), _watched(base, looked_into), calls:
        for config in configs:
            config._attn_implementation = name
        try:
            run_once(base)
        finally:
            for config, own in zip(configs, before, strict=True):
                config._attn_implementation = own
    return Observed(trial.layers, looked_into, calls.found)


class _WatchedLinear(nn.Linear):
    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            self.__dict__["looked_into"] = True
        return super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._parameters["weight"], self._parameters["bias"])


@contextmanager
def _watched(base: nn.Module, found: list[nn.Module]) -> Iterator[None]:
    """found: gets the linear maps whose weights are read by other modules than themselves"""
    maps: list[Any] = [module for module in base.modules() if type(module) is nn.Linear]
    for module in maps:
        module.__class__ = _WatchedLinear
    try:
        yield
    finally:
        for module in maps:
            module.__class__ = nn.Linear
            if module.__dict__.pop("looked_into", False):
                found.append(module)


@torch.no_grad()
def run_once(base: Any) -> torch.Tensor:
    """A forward of a few tokens in shapes alone -> its hidden states [1, T, H]"""
    ids = torch.zeros((1, _TOKENS), dtype=torch.int32, device="meta")
    positions = torch.zeros((1, _TOKENS), dtype=torch.int64, device="meta")
    every = torch.ones((1, _TOKENS), dtype=torch.int64, device="meta")  # without it, positions would be looked at
    return base(input_ids=ids, position_ids=positions, attention_mask=every, use_cache=False)[0]
