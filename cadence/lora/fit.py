"""An adapter made ready for one model: every tensor in its place there, in the form that kernels read.

This may take a while (magnitudes need the norms of the model's rows) and may be done in any thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from cadence.core.errors import AdapterError
from cadence.core.shown import shown
from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.lora_ops import NO_PART, NOTHING, LoraOps, LoraPart
from cadence.lora.adapter import AdaptedModule, AdapterFile, Shapes, rank_of
from cadence.lora.buffer import BufferSpan, Gathered, narrow_type
from cadence.lora.magnitude import embedding_squares, factor, linear_squares
from cadence.lora.names import Role
from cadence.lora.slices import own_slices, whole_shapes
from cadence.lora.targets import Target, TargetKind, TargetPart
from cadence.models.layers.linear import Linear
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.weight import Weight

_ROLES = {
    TargetKind.LINEAR: {Role.A, Role.B, Role.B_BIAS, Role.MAGNITUDE, Role.BIAS, Role.PLAIN_BIAS},
    TargetKind.HEAD: {Role.A, Role.B, Role.B_BIAS, Role.MAGNITUDE, Role.BASE, Role.SAVED},
    TargetKind.EMBEDDING: {Role.EMBEDDING_A, Role.EMBEDDING_B, Role.MAGNITUDE, Role.BASE, Role.SAVED},
    TargetKind.NORM: {Role.PLAIN_BIAS},
}
_SAME_ROW = 0.2  # a saved copy of the model's own row differs by less than this part of it, as quantisation does
_CHUNK = 1 << 22  # numbers compared at once


@dataclass(frozen=True, slots=True)
class PartSpans:
    """A `LoraPart` in memory that may lie anywhere."""

    a: BufferSpan
    b: BufferSpan
    scale: float
    factor: BufferSpan
    offset: BufferSpan
    saved: BufferSpan

    def of(self, memory: torch.Tensor) -> LoraPart:
        return LoraPart(
            a=self.a.of(memory),
            b=self.b.of(memory),
            scale=self.scale,
            factor=self.factor.of(memory),
            offset=self.offset.of(memory),
            saved=self.saved.of(memory),
        )


@dataclass(frozen=True, slots=True)
class SharedNorms:
    """Of a part whose norms are those of several ranks together: what follows from them has to wait."""

    module: AdaptedModule
    part: NumberedPart
    squares: torch.Tensor  # [out] float64: this rank's terms
    has_bias: bool


@dataclass(frozen=True, slots=True)
class PreparedAdapter:
    digest: str
    memory: torch.Tensor  # [num_bytes] uint8, on the host
    parts: Mapping[int, PartSpans]  # by the number of the part in the model
    changed: frozenset[int]  # parts with a low-rank change, a bias or a magnitude
    replaced: frozenset[int]  # parts with a matrix in place of the model's own
    waiting: list[SharedNorms]  # in the order of parts; none once `finish` was called

    def finish(self, ranks: Collectives) -> None:
        """Every rank calls it before a forward uses the adapter, in the same order as what else they do together."""
        for norms in self.waiting:
            spans, total = self.parts[norms.part.number], ranks.all_reduce(norms.squares.float())
            found = factor(norms.module, total)
            spans.factor.of(self.memory).copy_(found)
            if norms.has_bias:
                spans.offset.of(self.memory).copy_(_offset(norms.module, norms.part, found))
        self.waiting.clear()

    @property
    def num_bytes(self) -> int:
        """Of the device's memory, and of the host's."""
        return self.memory.nbytes


@dataclass(frozen=True, slots=True)
class NumberedPart:
    number: int
    target: Target
    part: TargetPart


class Fitting:
    """How adapters become parts of one model."""

    def __init__(
        self,
        parts: Mapping[str, NumberedPart],
        weights: Mapping[str, Weight],
        dtype: torch.dtype,
        ops: LoraOps,
        ranks: Collectives,
    ) -> None:
        """parts: by every name they have in checkpoints; weights: the model's own, by the paths of their modules;
        dtype: of activations; ops: who reads what comes of it; ranks: that share the weights."""
        self._parts = parts
        self._weights = weights
        self._dtype = dtype
        self._ops = ops
        self._ranks = ranks
        self._narrows = ops.any_type and dtype is torch.float32

    def prepare(self, file: AdapterFile, elsewhere: Collection[str]) -> PreparedAdapter:
        """Raises an AdapterError where the adapter is not one of this model's, before a tensor is read. elsewhere:
        modules that are not looked at"""
        shapes = {module: found for module, found in file.shapes().items() if module not in elsewhere}
        places = self._places(shapes, str(file.path))
        adapter = file.read(shapes)
        gathered, spans = Gathered(), {}
        changed, replaced, waiting = set(), set(), []
        for name, found in places.items():
            made, later = self._part(adapter.modules[name], found)
            waiting += later
            spans[found.number] = _gather(made, gathered)
            if made.rank or made.factor.numel() or made.offset.numel():
                changed.add(found.number)
            if made.saved.numel():
                replaced.add(found.number)
        waiting.sort(key=lambda norms: norms.part.number)
        return PreparedAdapter(
            digest=adapter.digest,
            memory=gathered.memory(),
            parts=spans,
            changed=frozenset(changed),
            replaced=frozenset(replaced),
            waiting=waiting,
        )

    def _places(self, modules: Mapping[str, Shapes], where: str) -> dict[str, NumberedPart]:
        """Where in the model each module belongs, whose shapes fit there."""
        places: dict[str, NumberedPart] = {}
        taken = set()
        for name, shapes in modules.items():
            found = self._find(name, shapes, where)
            _check_shapes(name, shapes, found, where)
            if found.number in taken:
                raise AdapterError(f"{where}: module {shown(name)} is there under two names")
            taken.add(found.number)
            places[name] = found
        return places

    def _find(self, name: str, shapes: Shapes, where: str) -> NumberedPart:
        found = self._parts.get(name)
        if found is None:
            raise AdapterError(f"{where}: module {shown(name)} is none of this model's that can be adapted")
        extra = [role for role in shapes if role not in _ROLES[found.target.kind]]
        if extra:
            kind = found.target.kind.value
            raise AdapterError(f"{where}: module {shown(name)}, a {kind}, cannot have a {extra[0].value} here")
        return found

    def _part(self, module: AdaptedModule, found: NumberedPart) -> tuple[LoraPart, list[SharedNorms]]:
        """-> (what it is, what of it has to wait for other ranks)"""
        module = own_slices(module, found.target, found.part)
        if found.target.kind is TargetKind.NORM:
            offset = module.tensors[Role.PLAIN_BIAS].float() - _own_bias(found)
            return LoraPart(NO_PART.a, NO_PART.b, offset=offset), []
        saved = _saved(module, self._weights[found.target.path])
        a, b = _matrices(module, found.target.kind)
        scales, waiting = NOTHING, []
        if Role.MAGNITUDE in module.tensors:
            squares = self._squares(module, found, saved)
            scales = factor(module, squares)
            if self._shares_norms(found.target):
                waiting.append(SharedNorms(module, found, squares, self._adds_bias(found.target)))
        dtype = self._dtype
        if self._narrows:
            dtype = narrow_type([tensor for tensor in (a, b, saved) if tensor.numel()])
        saved = saved.to(dtype) if saved.numel() else NOTHING
        offset = _offset(module, found, scales) if self._adds_bias(found.target) else NOTHING
        made = LoraPart(a.to(dtype), b.to(dtype), module.scale, scales, offset, saved)
        return self._ops.arranged(made, found.target.kind is TargetKind.EMBEDDING), waiting

    def _squares(self, module: AdaptedModule, found: NumberedPart, saved: torch.Tensor) -> torch.Tensor:
        rows = _RowsOf(self._weights[found.target.path], found.part.first, saved)
        if found.target.kind is not TargetKind.EMBEDDING:
            return linear_squares(module, rows)
        _, (own,) = found.part.stored
        return embedding_squares(module, rows, min(self._ranks.rank * len(own) - own.start, len(own)))

    def _shares_norms(self, target: Target) -> bool:
        return target.is_sum or (self._ranks.size > 1 and target.kind is TargetKind.EMBEDDING)

    def _adds_bias(self, target: Target) -> bool:
        """Of what ranks add up, the first has the bias."""
        return self._ranks.rank == 0 or not target.is_sum


class _RowsOf:
    """Rows of what an adapter builds on: the model's own matrix from a row on, or the saved one."""

    def __init__(self, weight: Weight, first: int, saved: torch.Tensor) -> None:
        self._weight, self._first, self._saved = weight, first, saved

    def __call__(self, first: int, count: int) -> torch.Tensor:
        """[count, cols] float32, on the host"""
        if self._saved.numel():
            return self._saved[first : first + count].float()
        return self._weight.values_of(self._first + first, count).cpu()


def _check_shapes(name: str, shapes: Shapes, found: NumberedPart, where: str) -> None:
    has_new = Role.BIAS in shapes or Role.PLAIN_BIAS in shapes
    if has_new and not _own_bias(found).numel():
        raise AdapterError(f"{where}: module {shown(name)} has a bias, but none in this model")
    wanted = whole_shapes(rank_of(shapes), found.target, found.part)
    for role, shape in shapes.items():
        if shape != wanted[role]:
            raise AdapterError(
                f"{where}: {name}.{role.value} is {list(shape)}, but this model takes {list(wanted[role])}: "
                "it was trained on another model, or with another vocabulary"
            )


def _matrices(module: AdaptedModule, kind: TargetKind) -> tuple[torch.Tensor, torch.Tensor]:
    """As `LoraPart` has them; without a rank where there are none."""
    first, second = (Role.EMBEDDING_A, Role.EMBEDDING_B) if kind is TargetKind.EMBEDDING else (Role.A, Role.B)
    if first not in module.tensors:
        return NO_PART.a, NO_PART.b
    a, b = module.tensors[first], module.tensors[second]
    return a.T if kind is TargetKind.EMBEDDING else a, b.T


def _saved(module: AdaptedModule, weight: Weight) -> torch.Tensor:
    """What stands in place of the model's matrix. A copy of that itself, which PEFT may leave beside A and B, does not
    count, unless a row is another."""
    if Role.SAVED in module.tensors:
        return module.tensors[Role.SAVED]
    copy = module.tensors.get(Role.BASE, NOTHING)
    step = max(_CHUNK // max(weight.cols, 1), 1)
    for first in range(0, copy.shape[0], step):
        theirs = copy[first : first + step].float()
        ours = weight.values_of(first, theirs.shape[0]).cpu()
        if bool(((theirs - ours).norm(dim=1) > _SAME_ROW * ours.norm(dim=1)).any()):
            return copy
    return NOTHING


def _offset(module: AdaptedModule, found: NumberedPart, factor: torch.Tensor) -> torch.Tensor:
    """y is W x with the model's bias: that one is taken back and another put in its place."""
    own = _own_bias(found)
    new = module.tensors.get(Role.BIAS, module.tensors.get(Role.PLAIN_BIAS))
    offset = NOTHING
    if own.numel() and (new is not None or factor.numel()):
        offset = (own if new is None else new.float()) - (own * factor if factor.numel() else own)
    if Role.B_BIAS in module.tensors:
        added = module.tensors[Role.B_BIAS].float() * module.scale
        offset = offset + added if offset.numel() else added
    return offset


def _own_bias(found: NumberedPart) -> torch.Tensor:
    """[rows] float32, or empty"""
    module = found.target.module
    if not isinstance(module, Linear | LayerNorm) or module.bias is None:
        return NOTHING
    return module.bias[found.part.first : found.part.first + found.part.rows].float().cpu()


def _gather(part: LoraPart, gathered: Gathered) -> PartSpans:
    return PartSpans(
        a=gathered.put(part.a),
        b=gathered.put(part.b),
        scale=part.scale,
        factor=gathered.put(part.factor),
        offset=gathered.put(part.offset),
        saved=gathered.put(part.saved),
    )
