"""A model whose products adapters may change: slots for them, and what lies there."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from cadence.device.base import Device
from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.kernels.interface.lora_ops import ENTRY_WORDS, NO_PART, LoraMap, LoraOps, LoraPart
from cadence.lora.adapter import AdapterFile
from cadence.lora.fit import Fitting, NumberedPart, PreparedAdapter
from cadence.lora.layers import Adaptation, AdaptedNorm, AdaptedWeight
from cadence.lora.limits import LoraLimits
from cadence.lora.targets import AdaptableLM, Target, TargetKind, find_targets
from cadence.models.layers.norm import LayerNorm
from cadence.models.layers.weight import Weight


class LoraModel:
    """Puts itself around the weights of `model`, once they are loaded. A forward uses adapters where its context names
    slots.

    `prepare` may run in any thread, beside forwards; `put` and `clear` come between forwards, and never name a slot
    that a row in flight has.
    """

    def __init__(
        self,
        model: AdaptableLM,
        limits: LoraLimits,
        device: Device,
        ops: LoraOps,
        dtype: torch.dtype,
        ranks: Collectives = ONE_RANK,
    ) -> None:
        """ops: those of every forward with adapters; dtype: of activations; ranks: that share the model's layers"""
        self.limits = limits
        self._device = device
        self._targets = find_targets(model)
        self._numbers = _number(self._targets)
        count = sum(len(target.parts) for target in self._targets)
        size = (limits.num_slots, count, ENTRY_WORDS)
        self._entries = torch.zeros(size, dtype=torch.int64, device=device.torch_device)
        self._adaptations = {
            target.path: Adaptation(self._new_map(target, dtype), target.place) for target in self._targets
        }
        weights = {target.path: target.holder.weight for target in self._targets if target.kind is not TargetKind.NORM}
        self._fitting = Fitting(self._by_name(), weights, dtype, ops, ranks)
        self._ranks = ranks
        self._dtype = dtype
        for target in self._targets:
            _wrap(model, target, self._adaptations[target.path], weights)

    def prepare(self, file: AdapterFile, elsewhere: Collection[str] = ()) -> PreparedAdapter:
        """Checks that it fits, reads it and makes it ready. Raises an AdapterError. elsewhere: names of modules that
        other stages adapt"""
        return self._fitting.prepare(file, elsewhere)

    def put(self, slot: int, prepared: PreparedAdapter) -> bool:
        """Into a slot, in place of what lies there. -> whether a module is adapted for the first time: forwards that
        were recorded before do not know of it, and must be recorded anew."""
        prepared.finish(self._ranks)
        device = self._device.torch_device
        memory = prepared.memory if device.type == "cpu" else self._device.upload(prepared.memory.numpy())
        parts = {number: spans.of(memory) for number, spans in prepared.parts.items()}
        words_np = np.array([parts.get(n, NO_PART).words() for n in range(self._entries.shape[1])], dtype=np.int64)
        self._entries[slot].copy_(self._device.upload(words_np))
        for target in self._targets:
            self._adaptations[target.path].lora.slots[slot] = self._parts_of(target, parts)
        return self._note(prepared)

    def clear(self, slot: int) -> None:
        """Empties a slot: what names it is computed without an adapter."""
        self._entries[slot].zero_()
        for adaptation in self._adaptations.values():
            adaptation.lora.slots.pop(slot, None)

    def adapt_everywhere(self) -> None:
        """From now on every low-rank change is part of forwards with adapters, whichever come: nothing that was
        recorded after this is outdated by an adapter without vocabulary of its own."""
        for target in self._targets:
            if target.kind is TargetKind.LINEAR:
                self._adaptations[target.path].changes = True

    @property
    def slot_bytes(self) -> int:
        """What an adapter takes at most of the device's memory, unless it changes the vocabulary's ends."""
        size = self._dtype.itemsize
        linears = [target for target in self._targets if target.kind is TargetKind.LINEAR]
        shapes = [(part.rows, target.cols) for target in linears for part in target.parts]
        return sum(self.limits.max_rank * (rows + cols) * size + 8 * rows + 256 for rows, cols in shapes)

    def _new_map(self, target: Target, dtype: torch.dtype) -> LoraMap:
        embedding = target.kind is TargetKind.EMBEDDING
        widths = (target.cols,) if embedding else tuple(part.rows for part in target.parts)
        starts = torch.tensor([0, *np.cumsum(widths)], dtype=torch.int32, device=self._entries.device)
        first = self._numbers[target.path]
        return LoraMap(self._entries, first, starts, widths, self.limits.max_rank, dtype)

    def _by_name(self) -> dict[str, NumberedPart]:
        found = {}
        for target in self._targets:
            for index, part in enumerate(target.parts):
                numbered = NumberedPart(self._numbers[target.path] + index, target, part)
                found.update({name: numbered for name in part.names if name not in found})
        return found

    def _parts_of(self, target: Target, parts: dict[int, LoraPart]) -> tuple[LoraPart, ...]:
        first = self._numbers[target.path]
        return tuple(parts.get(first + index, NO_PART) for index in range(len(target.parts)))

    def _note(self, prepared: PreparedAdapter) -> bool:
        new = False
        for target in self._targets:
            adaptation, first = self._adaptations[target.path], self._numbers[target.path]
            numbers = set(range(first, first + len(target.parts)))
            changes = adaptation.changes or bool(numbers & prepared.changed)
            replaces = adaptation.replaces or bool(numbers & prepared.replaced)
            new |= (changes, replaces) != (adaptation.changes, adaptation.replaces)
            adaptation.changes, adaptation.replaces = changes, replaces
        return new


def _number(targets: list[Target]) -> dict[str, int]:
    """The number of each target's first part."""
    numbers, count = {}, 0
    for target in targets:
        numbers[target.path] = count
        count += len(target.parts)
    return numbers


def _wrap(model: AdaptableLM, target: Target, adaptation: Adaptation, weights: dict[str, Weight]) -> None:
    if target.kind is not TargetKind.NORM:
        target.holder.use(weights[target.path].wrapped(lambda base: AdaptedWeight(base, adaptation)))
        return
    parent, _, name = target.path.rpartition(".")
    assert isinstance(target.module, LayerNorm)
    setattr(model.get_submodule(parent), name, AdaptedNorm(target.module, adaptation))
