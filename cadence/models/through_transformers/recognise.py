"""Blocks of ours that make of a rehearsal's numbers what transformers' modules made of them.

| what is seen | becomes |
|---|---|
| linear maps of one input, maybe norms of heads, a rotation, attention, a linear map | `Attention`: one product |
| act(linear(x)) * linear(x), and a linear map of that | `GatedMLP`: one product and a gate |

Where numbers differ, or anything else goes on in a module, it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from cadence.models.through_transformers.norm import LAYER, FoundNorm, find_norm
from cadence.models.through_transformers.rehearsal import AttentionCall, Call, Heard

_GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class Turning:
    """A module that gives cosines and sines, as it was called."""

    module: nn.Module
    args: tuple[Any, ...]  # but for the first, which says the type and device of its results
    kwargs: dict[str, Any]
    cos: torch.Tensor  # [T, dim], of the rehearsal's positions
    sin: torch.Tensor  # [T, dim]


@dataclass(frozen=True, slots=True)
class FoundAttention:
    module: nn.Module
    projections: tuple[nn.Linear, ...]  # of queries, keys and values; or one that gives all three, in this order
    out: nn.Linear
    turning: Turning | None
    norms: tuple[tuple[nn.Module, FoundNorm], ...]  # of heads of queries and of keys; () = none
    keyword: str  # of what goes in; "" = it comes first
    results: int  # that it returns, the block's first; 0 = that alone


@dataclass(frozen=True, slots=True)
class FoundMLP:
    module: nn.Module
    projections: tuple[nn.Linear, ...]  # gate and up; or one that gives both, in this order
    down: nn.Linear
    activation: str


@dataclass(slots=True)
class Recognised:
    attention: dict[nn.Module, FoundAttention]
    mlps: dict[nn.Module, FoundMLP]
    turnings: list[Turning]  # of which no module but these has use
    heard: Heard


def recognise(heard: Heard, layers: list[nn.Module]) -> Recognised:
    """layers: the modules that attend"""
    turnings = find_turnings(heard)
    attention = {each: found for each in layers if (found := find_attention(heard, each, turnings)) is not None}
    modules = {call.module for call in heard.calls} - attention.keys()
    mlps = {each: found for each in modules if (found := find_mlp(heard, each)) is not None}
    return Recognised(attention, mlps, turnings if len(attention) == len(layers) else [], heard)


def find_turnings(heard: Heard) -> list[Turning]:
    found = []
    for call in heard.calls:
        pair = call.result
        if isinstance(pair, tuple) and len(pair) == 2 and all(_is_table(each) for each in pair):
            found.append(Turning(call.module, call.args[1:], call.kwargs, pair[0][0], pair[1][0]))
    return found


def _is_table(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 3 and value.shape[0] == 1 and value.shape[2] % 2 == 0


def find_attention(heard: Heard, module: nn.Module, turnings: list[Turning]) -> FoundAttention | None:
    calls, attended = heard.of(module), heard.attention.get(module, [])
    if len(calls) != 1 or len(attended) != 1:
        return None
    whole, seen = calls[0], attended[0]
    inner = [call for call in heard.within(module) if type(call.module) is nn.Linear]
    if len(inner) not in (2, 4) or not _is_all(module, heard):
        return None
    *projections, out = inner
    x, keyword = _input(whole, projections[0])
    first = whole.result[0] if isinstance(whole.result, tuple) else whole.result
    same = all(call.args[0] is x for call in projections)
    if not same or first is not out.result or not _equal(out.args[0], seen.attended.reshape(out.args[0].shape)):
        return None
    if seen.v.shape[3] != seen.q.shape[3]:
        return None
    others = [each for each in module.children() if not isinstance(each, nn.Linear) and list(each.parameters())]
    norms = [call for call in heard.within(module) if call.module in _norms_of_heads(module, seen.q.shape[3])]
    if len(norms) != len(others) or len(norms) not in (0, 2):
        return None
    found = _roles(projections, seen, turnings, norms)
    if found is None:
        return None
    maps, turning, used = found
    if not _fits(maps, _linear(out)) or len({norm.eps for _, norm in used}) > 1:
        return None
    results = len(whole.result) if isinstance(whole.result, tuple) else 0
    return FoundAttention(module, maps, _linear(out), turning, used, keyword, results)


Roles = tuple[tuple[nn.Linear, ...], Turning | None, tuple[tuple[nn.Module, FoundNorm], ...]]


def _roles(projections: list[Call], seen: AttentionCall, turnings: list[Turning], norms: list[Call]) -> Roles | None:
    """Which gives queries, keys and values, and what is done to the first two. norms: all that the module has"""
    wanted = [each[0].transpose(0, 1) for each in (seen.q, seen.k, seen.v)]  # [T, H, D] each
    for order in _orders(projections, wanted):
        q, k, v = (given.reshape(want.shape) for (_, given), want in zip(order, wanted, strict=True))
        if not _equal(v, wanted[2]):
            continue
        for chosen in (norms, norms[::-1]):
            normed = [_normed(x, norm) for x, norm in zip((q, k), chosen, strict=True)] if norms else [q, k]
            for turning in (None, *turnings):
                if all(_equal(_turned(x, turning), want) for x, want in zip(normed, wanted[:2], strict=True)):
                    maps = tuple(dict.fromkeys(linear for linear, _ in order))
                    return maps, turning, tuple((call.module, find_norm(call.module)) for call in chosen)
    return None


def _norms_of_heads(module: nn.Module, head_dim: int) -> list[nn.Module]:
    """Those of queries and keys, where both have one; all others make the module another one than ours."""
    norms = [each for each in module.children() if not isinstance(each, nn.Linear) and list(each.parameters())]
    found = [find_norm(each) for each in norms]
    return norms if all(norm is not None and norm.kind != LAYER and norm.size == head_dim for norm in found) else []


def _normed(x: torch.Tensor, norm: Call) -> torch.Tensor:
    """x [T, H, D] as the norm gave it, if it was given that"""
    given, made = norm.args[0][0], norm.result[0]
    if given.shape == x.transpose(0, 1).shape:
        given, made = given.transpose(0, 1), made.transpose(0, 1)
    return made if _equal(given, x) else torch.full_like(x, float("nan"))


def _orders(projections: list[Call], wanted: list[torch.Tensor]) -> Iterator[list[tuple[nn.Linear, torch.Tensor]]]:
    """(linear map, what it gave) of queries, keys and values, in all ways that the sizes allow"""
    sizes = [want.shape[1] * want.shape[2] for want in wanted]
    if len(projections) == 1:
        given = projections[0].result[0]
        if given.shape[-1] == sum(sizes):
            yield [(_linear(projections[0]), part) for part in given.split(sizes, dim=-1)]
        return
    for a, b, c in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        calls = [projections[each] for each in (a, b, c)]
        if [call.result.shape[-1] for call in calls] == sizes:
            yield [(_linear(call), call.result[0]) for call in calls]


def _turned(x: torch.Tensor, turning: Turning | None) -> torch.Tensor:
    """x [T, H, D] with its first entries turned, in halves."""
    if turning is None:
        return x
    size = turning.cos.shape[1]
    if size > x.shape[2]:
        return torch.full_like(x, float("nan"))
    cos, sin = turning.cos[:, None, : size // 2], turning.sin[:, None, : size // 2]
    one, other, rest = x[..., : size // 2], x[..., size // 2 : size], x[..., size:]
    return torch.cat((one * cos - other * sin, other * cos + one * sin, rest), dim=2)


def find_mlp(heard: Heard, module: nn.Module) -> FoundMLP | None:
    calls = heard.of(module)
    inner = [call for call in heard.within(module) if type(call.module) is nn.Linear]
    if len(calls) != 1 or len(inner) not in (2, 3) or not _is_all(module, heard) or heard.attention.get(module):
        return None
    *projections, down = inner
    whole = calls[0]
    x, keyword = _input(whole, projections[0])
    if keyword or len(whole.args) != 1 or any(call.args[0] is not x for call in projections):
        return None
    if whole.result is not down.result:
        return None
    for gate, up, maps in _gates(projections):
        for name, act in _GATES.items():
            same = gate.shape == up.shape == down.args[0].shape and _equal(act(gate) * up, down.args[0])
            if same and _fits((*maps, _linear(down)), _linear(down)):
                return FoundMLP(module, maps, _linear(down), name)
    return None


def _gates(projections: list[Call]) -> Iterator[tuple[torch.Tensor, torch.Tensor, tuple[nn.Linear, ...]]]:
    """(gate, up, the maps that they come from)"""
    if len(projections) == 1:
        gate, up = projections[0].result.chunk(2, dim=-1)
        yield gate, up, (_linear(projections[0]),)
        return
    for one, other in (projections, projections[::-1]):
        yield one.result, other.result, (_linear(one), _linear(other))


def _input(whole: Call, first: Call) -> tuple[Any, str]:
    """-> (what goes into the module and its first map, its keyword)"""
    x = first.args[0]
    if whole.args and whole.args[0] is x:
        return x, ""
    return x, next((name for name, value in whole.kwargs.items() if value is x), "?")


def _is_all(module: nn.Module, heard: Heard) -> bool:
    """Whether its parameters are of linear maps and norms alone, each called once."""
    if next(module.parameters(recurse=False), None) is not None:
        return False
    for each in module.modules():
        own = next(each.parameters(recurse=False), None) is not None
        if each is not module and own and (len(heard.of(each)) != 1 or each not in set(module.children())):
            return False
    return True


def _fits(maps: tuple[nn.Linear, ...], last: nn.Linear) -> bool:
    """Whether maps of one block all have a bias or none, and it gives as many entries as it takes."""
    return len({each.bias is None for each in maps}) == 1 and maps[0].in_features == last.out_features


def _linear(call: Call) -> nn.Linear:
    assert isinstance(call.module, nn.Linear)
    return call.module


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.float(), other.float(), 1e-4, 1e-5)
