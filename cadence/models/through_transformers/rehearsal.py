"""One forward of transformers' code on random numbers, of which everything is kept: what went into each module and each
attention, and what came out.

It takes no memory for matrices: a linear map gives random numbers whatever it is given. So what modules make of these
is seen at its true sizes, and `recognise` can say whether a block of ours makes the same of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from cadence.models.through_transformers.outline import settled
from cadence.models.through_transformers.registered import observed

logger = logging.getLogger("cadence.models")

POSITIONS = (2, 3, 7)  # of its tokens
_MOST_NUMBERS = 1 << 24  # of a parameter that is no linear map's


@dataclass(eq=False, slots=True)
class Call:
    """Of one module."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inside: tuple[nn.Module, ...]  # the modules whose calls it was made in, the outermost first
    result: Any = None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    q: torch.Tensor  # [1, Hq, T, D]
    k: torch.Tensor  # [1, Hk, T, D]
    v: torch.Tensor  # [1, Hk, T, D or less]
    attended: torch.Tensor  # [1, T, Hq, D of v]


@dataclass(slots=True)
class Heard:
    """What was kept, in order."""

    calls: list[Call] = field(default_factory=list)
    attention: dict[nn.Module, list[AttentionCall]] = field(default_factory=dict)
    functions: list[tuple[Any, tuple[nn.Module, ...]]] = field(default_factory=list)  # of torch; the modules around

    def of(self, module: nn.Module) -> list[Call]:
        return [call for call in self.calls if call.module is module]

    def within(self, module: nn.Module) -> list[Call]:
        return [call for call in self.calls if module in call.inside]


def rehearsed(base: nn.Module, configs: Sequence[Any]) -> Heard | None:
    """base: in shapes alone but for its tables, as it is again after that. None: its code does something that random
    numbers are not enough for; then nothing is recognised in it."""
    heard, generator = Heard(), torch.Generator().manual_seed(0)
    ids, positions = torch.zeros((1, len(POSITIONS)), dtype=torch.int32), torch.tensor([POSITIONS])
    every = torch.ones((1, 1, len(POSITIONS), len(POSITIONS)), dtype=torch.bool)  # a mask that is made already
    try:
        with ExitStack() as stack, torch.no_grad():
            stack.enter_context(_filled(base, generator))
            stack.enter_context(settled(base))
            stack.enter_context(_noted(base, heard, configs, generator))
            base(input_ids=ids, position_ids=positions, attention_mask=every, use_cache=False)
    except Exception:
        logger.debug("nothing is recognised in %s", type(base).__name__, exc_info=True)
        return None
    return heard


@contextmanager
def _filled(base: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Small parameters have numbers; linear maps and embeddings give random ones."""
    before: list[tuple[nn.Module, type, dict[str, Any]]] = []
    try:
        for module in base.modules():
            kind = type(module)
            own = {} if kind in (nn.Linear, nn.Embedding) else dict(module._parameters)
            before.append((module, kind, own))
            if kind in (nn.Linear, nn.Embedding):
                module.__class__ = _stand_in(kind, generator)
            for name, parameter in own.items():
                if parameter is not None and parameter.numel() <= _MOST_NUMBERS:
                    values = torch.rand(parameter.shape, generator=generator) + 0.5
                    module._parameters[name] = nn.Parameter(values, requires_grad=False)
        yield
    finally:
        for module, kind, own in before:
            module.__class__ = kind
            module._parameters.update(own)


def _stand_in(kind: type, generator: torch.Generator) -> type:
    if kind is nn.Linear:

        class RandomLinear(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.randn((*x.shape[:-1], self.out_features), generator=generator)

        return RandomLinear

    class RandomEmbedding(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.randn((*ids.shape, self.embedding_dim), generator=generator)

    return RandomEmbedding


class _Hearing(TorchFunctionMode):
    """An `Observer` of attention, and of what functions of torch are called."""

    def __init__(self, heard: Heard, generator: torch.Generator) -> None:
        super().__init__()
        self.heard = heard
        self._generator = generator
        self._stack: list[Call] = []
        self._answers = False  # what is called is not transformers' doing

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not self._answers:
            self.heard.functions.append((func, self._around()))
        return func(*args, **(kwargs or {}))

    def attention(self, module: Any, qkv: tuple[torch.Tensor, ...], mask: Any, asked: dict[str, Any]) -> torch.Tensor:
        self._answers = True
        q, k, v = (each.clone() for each in qkv)
        attended = torch.randn((1, q.shape[2], q.shape[1], v.shape[3]), generator=self._generator)
        self._answers = False
        self.heard.attention.setdefault(module, []).append(AttentionCall(q, k, v, attended))
        return attended

    def mask(self, asked: dict[str, Any]) -> torch.Tensor:
        return torch.empty(0)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = Call(module, args, kwargs, self._around())
        self._stack.append(call)
        self.heard.calls.append(call)

    def leave(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        self._stack.pop().result = result

    def _around(self) -> tuple[nn.Module, ...]:
        return tuple(call.module for call in self._stack)


@contextmanager
def _noted(base: nn.Module, heard: Heard, configs: Sequence[Any], generator: torch.Generator) -> Iterator[None]:
    hearing = _Hearing(heard, generator)
    before = [config._attn_implementation for config in configs]
    hooks = []
    for module in base.modules():
        hooks.append(module.register_forward_pre_hook(hearing.enter, with_kwargs=True))
        hooks.append(module.register_forward_hook(hearing.leave))
    try:
        with observed(hearing) as name, hearing:
            for config in configs:
                config._attn_implementation = name
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation = own
