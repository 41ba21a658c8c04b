"""What a checkpoint calls its tensors, and what transformers makes of them before its model has them.

Our modules have the names that transformers gives its own. Where a checkpoint's are others, or several tensors become
one, transformers says so in a list of renamings and conversions. Experts are not stacked: each is found by itself, as a
checkpoint has it or as a part of a stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch

from cadence.models.tensor_plan import ShapeOf, StackPart, TensorPlan
from cadence.models.weight_map import Rule, WeightMap

_EXPERT = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class TransformersNames(WeightMap):
    unexpected: tuple[str, ...] = ()  # regular expressions: tensors that transformers passes over

    def is_ignored(self, name: str) -> bool:
        return any(re.search(pattern, name) for pattern in self.unexpected)


def rules_of(parameters: Mapping[str, tuple[str, str, dict[str, Any]]]) -> tuple[Rule, ...]:
    """parameters: our name (and "#", and a part) -> (transformers' name, part, what a rule says besides); layers that
    are alike have one rule."""
    found = {}
    for target, (source, part, settings) in parameters.items():
        rule = Rule(_starred(source), _starred(target.partition("#")[0]), part=part, **settings)
        found[rule] = None
    return tuple(found)


def _starred(name: str) -> str:
    return ".".join("*" if component.isdecimal() else component for component in name.split("."))


@dataclass(slots=True)
class TransformersConversion:
    """A `Conversion` of transformers' own."""

    converter: Any
    target: str  # the first of what it makes
    model: Any
    sources: list[tuple[str, str]] = field(default_factory=list)  # (name in the checkpoint, the pattern that it fits)

    def run(self, load: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        converter = deepcopy(self.converter)
        for name, pattern in self.sources:
            converter.add_tensor(self.target, name, pattern, load(name))
        made = converter.convert(self.target, model=self.model, config=self.model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


class Planning:
    """How a checkpoint's tensors become those of transformers' model."""

    def __init__(self, model: Any, shapes: Mapping[str, torch.Size], stacks: Collection[str]) -> None:
        """model: transformers', in shapes alone; shapes: of its tensors; stacks: those that are taken apart"""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        mapping = get_model_conversion_mapping(model)
        self._model = model
        self._shapes = shapes
        self._stacks = stacks
        self._renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        self._converters = [each for each in mapping if isinstance(each, WeightConverter)]
        self._by_pattern = {pattern: each for each in self._converters for pattern in each.source_patterns}

    def plan(self, names: Sequence[str], shape_of: ShapeOf) -> TensorPlan:
        plan = TensorPlan()
        conversions: dict[str, TransformersConversion] = {}
        for name in names:
            target, pattern = self._renamed(name)
            converter = self._by_pattern.get(pattern or "")
            expert = _EXPERT.search(name, name.rfind("expert"))
            if target in self._stacks and converter is None:
                plan.parts.update(_taken_apart(name, target, shape_of(name)))
            elif target in self._stacks and converter is not None and expert:
                plan.plain[_of_expert(target, int(expert[1]), converter.source_patterns.index(pattern))] = name
            elif target in self._shapes and converter is not None:
                made = conversions.setdefault(target, TransformersConversion(converter, target, self._model))
                made.sources.append((name, str(pattern)))
            else:
                plan.plain[target] = name
        for made in conversions.values():
            for name, value in made.run(lambda name: torch.empty(shape_of(name), device="meta")).items():
                plan.made[name], plan.shapes[name] = made, tuple(value.shape)
        return plan

    def _renamed(self, name: str) -> tuple[str, str | None]:
        """-> (transformers' name, the pattern of the conversion that it is for)"""
        from transformers.core_model_loading import rename_source_key

        prefix = self._model.base_model_prefix
        found = rename_source_key(name, self._renamings, self._converters, prefix, self._shapes)
        return (name, None) if found[0] not in self._shapes and name in self._shapes else found


def _taken_apart(name: str, target: str, shape: tuple[int, ...]) -> dict[str, StackPart]:
    """name: of a stack in the checkpoint"""
    count, rows = shape[:2]
    pieces = [(0, rows // 2), (rows // 2, rows)] if target.endswith("gate_up_proj") else [(0, rows)]
    return {
        _of_expert(target, index, number): StackPart(name, index, piece)
        for index in range(count)
        for number, piece in enumerate(pieces)
    }


def _of_expert(stack: str, expert: int, number: int) -> str:
    """number: among what is side by side in a stack"""
    experts, _, kind = stack.rpartition(".")
    return f"{experts}.{expert}.{('gate_proj', 'up_proj')[number] if kind == 'gate_up_proj' else kind}.weight"
