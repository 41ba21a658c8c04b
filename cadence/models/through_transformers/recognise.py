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
    repeats: bool  # each number comes twice in a row; else all come twice, one after the other
    cos: torch.Tensor  # [T, dim / 2], of the rehearsal's positions
    sin: torch.Tensor  # [T, dim / 2]


@dataclass(frozen=True, slots=True)
class FoundAttention:
    module: nn.Module
    projections: tuple[nn.Linear, ...]  # of queries, keys and values; or one that gives all three, in this order
    out: nn.Linear
    turning: Turning | None
    neighbours: bool  # entries that turn together lie side by side
    grouped: bool  # the one projection has queries, keys and values head by head
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
            found += _turning(call, pair[0][0], pair[1][0])
    return found


def _turning(call: Call, cos: torch.Tensor, sin: torch.Tensor) -> Iterator[Turning]:
    """cos, sin [T, dim], in which each number is twice"""
    half = cos.shape[1] // 2
    for repeats in (False, True):
        pairs = [(x[:, ::2], x[:, 1::2]) if repeats else (x[:, :half], x[:, half:]) for x in (cos, sin)]
        if all(equal(one, other) for one, other in pairs):
            yield Turning(call.module, call.args[1:], call.kwargs, repeats, pairs[0][0], pairs[1][0])
            return


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
    if not same or first is not out.result or not equal(out.args[0], seen.attended.reshape(out.args[0].shape)):
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
    if not _fits(found.maps, _linear(out)) or len({norm.eps for _, norm in found.norms}) > 1:
        return None
    return FoundAttention(
        module=module,
        projections=found.maps,
        out=_linear(out),
        turning=found.turning,
        neighbours=found.neighbours,
        grouped=found.grouped,
        norms=found.norms,
        keyword=keyword,
        results=len(whole.result) if isinstance(whole.result, tuple) else 0,
    )


@dataclass(frozen=True, slots=True)
class _Roles:
    """Of linear maps, as `FoundAttention` has it."""

    maps: tuple[nn.Linear, ...]
    turning: Turning | None
    neighbours: bool
    grouped: bool
    norms: tuple[tuple[nn.Module, FoundNorm], ...]


def _roles(projections: list[Call], seen: AttentionCall, turnings: list[Turning], norms: list[Call]) -> _Roles | None:
    """Which gives queries, keys and values, and what is done to the first two. norms: all that the module has"""
    wanted = [each[0].transpose(0, 1) for each in (seen.q, seen.k, seen.v)]  # [T, H, D] each
    for order, grouped in _orders(projections, wanted):
        q, k, v = (given for _, given in order)
        if not equal(v, wanted[2]):
            continue
        for chosen in (norms, norms[::-1]):
            normed = [_normed(x, norm) for x, norm in zip((q, k), chosen, strict=True)] if norms else [q, k]
            for turning, neighbours in _ways(turnings, bool(norms)):
                turned = [_turned(x, turning, neighbours) for x in normed]
                if all(equal(x, want) for x, want in zip(turned, wanted[:2], strict=True)):
                    maps = tuple(dict.fromkeys(linear for linear, _ in order))
                    named = tuple(
                        (call.module, norm) for call in chosen if (norm := find_norm(call.module)) is not None
                    )
                    return _Roles(maps, turning, neighbours, grouped, named)
    return None


def _ways(turnings: list[Turning], normed: bool) -> Iterator[tuple[Turning | None, bool]]:
    """(cosines and sines, whether neighbours turn): not after norms of heads, whose weights would lie otherwise, too"""
    yield None, False
    for turning in turnings:
        yield turning, False
        if not normed:
            yield turning, True


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
    return made if equal(given, x) else torch.full_like(x, float("nan"))


Given = list[tuple[nn.Linear, torch.Tensor]]  # (linear map, what it gave [T, H, D]) of queries, keys and values


def _orders(projections: list[Call], wanted: list[torch.Tensor]) -> Iterator[tuple[Given, bool]]:
    """In all ways that the sizes allow; and whether heads are grouped."""
    sizes = [want.shape[1] * want.shape[2] for want in wanted]
    if len(projections) == 1:
        linear, given = _linear(projections[0]), projections[0].result[0]
        if given.shape[-1] == sum(sizes):
            stacked = given.split(sizes, dim=-1)
            yield [(linear, x.reshape(want.shape)) for x, want in zip(stacked, wanted, strict=True)], False
            yield [(linear, x) for x in _of_groups(given, wanted)], True
        return
    for places in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        calls = [projections[each] for each in places]
        if [call.result.shape[-1] for call in calls] == sizes:
            each = zip(calls, wanted, strict=True)
            yield [(_linear(call), call.result[0].reshape(want.shape)) for call, want in each], False


def _of_groups(given: torch.Tensor, wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    """given [T, all]: for each head of keys its queries, its key, its value -> all queries, keys, values"""
    tokens, heads, size = wanted[1].shape
    grouped = given.reshape(tokens, heads, -1, size)
    queries = grouped.shape[2] - 2
    parts = grouped.split([queries, 1, 1], dim=2)
    return [part.reshape(tokens, -1, size) for part in parts]


def _turned(x: torch.Tensor, turning: Turning | None, neighbours: bool) -> torch.Tensor:
    """x [T, H, D] with its first entries turned: in halves, or each with its neighbour"""
    if turning is None:
        return x
    half = turning.cos.shape[1]
    if 2 * half > x.shape[2]:
        return torch.full_like(x, float("nan"))
    cos, sin, turns, rest = turning.cos[:, None], turning.sin[:, None], x[..., : 2 * half], x[..., 2 * half :]
    one, other = (turns[..., ::2], turns[..., 1::2]) if neighbours else turns.chunk(2, dim=2)
    made = one * cos - other * sin, other * cos + one * sin
    return torch.cat((torch.stack(made, dim=3).flatten(2) if neighbours else torch.cat(made, dim=2), rest), dim=2)


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
            same = gate.shape == up.shape == down.args[0].shape and equal(act(gate) * up, down.args[0])
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


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.float(), other.float(), 1e-4, 1e-5)
