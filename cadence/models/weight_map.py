"""Declarative maps from the names in a checkpoint to the parameters of a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Rule:
    """`source` in the checkpoint fills `target` in the model.

    A `*` stands for one component of a dotted name; those of source and target correspond in order. `part` names the
    part of a fused parameter, "" fills all of it. From `transpose` to `add`: how stored values differ from ours.
    """

    source: str  # "model.layers.*.self_attn.q_proj.*"
    target: str  # "layers.*.attn.qkv.*"
    part: str = ""
    transpose: bool = False  # matrices are stored [in, out]
    kernel: tuple[int, ...] = ()  # of a convolution, stored [out, in, *kernel]: ours has an input's taps side by side
    taps: bool = False  # a convolution of each channel by itself, stored [channels, 1, taps]
    columns: tuple[int, int] = (0, 1)  # (i, n): ours is the i-th of n equal ranges of the stored matrix's inputs
    times: float = 1.0  # multiplied in float32
    factors: tuple[tuple[int, float], ...] = ()  # multiplied as well: of so many of our rows each, in order
    add: float = 0.0  # added in float32, after that
    form: str = ""  # of rules of several forms for one parameter, a checkpoint has what those of one want
    optional: bool = False  # a checkpoint may lack it: the parameter is then as the model was built

    @property
    def is_scaled(self) -> bool:
        """Whether ours are multiples of what is stored."""
        return self.times != 1.0 or bool(self.factors)

    def source_of(self, parameter: str) -> str | None:
        """The checkpoint's name for what fills `parameter`; None when this rule does not."""
        found = _pattern(self.target).fullmatch(parameter)
        if found is None:
            return None
        pieces = iter(found.groups())
        return re.sub(r"\*", lambda _: next(pieces), self.source)


Found = tuple[Rule, list[str]]  # a rule, and the names of what it fills its target with


@dataclass(frozen=True, slots=True)
class WeightMap:
    rules: tuple[Rule, ...]
    other_prefixes: tuple[tuple[str, str], ...] = ()  # (usual, other): how else a checkpoint may begin source names
    ignored: tuple[str, ...] = ()  # patterns of tensors that carry nothing we need; ** = anything
    other_ends: tuple[tuple[str, str], ...] = ()  # (usual, other): how else it may end them
    stacks: tuple[str, ...] = ()  # of tensors of all experts; rules name each expert's matrix: "a.weight" "a.*.weight"

    def rules_for(self, parameter: str) -> list[Found]:
        """Rules that fill `parameter`, each with the names its tensor may have in a checkpoint, usual first. Of several
        forms, those of the first."""
        forms = self.forms_for(parameter)
        return forms[0] if forms else []

    def forms_for(self, parameter: str) -> list[list[Found]]:
        """The same of every form."""
        forms: dict[str, list[Found]] = {}
        for rule in self.rules:
            source = rule.source_of(parameter)
            if source is not None:
                others = [
                    other + source[len(usual) :] for usual, other in self.other_prefixes if source.startswith(usual)
                ]
                forms.setdefault(rule.form, []).append((rule, self._with_other_ends([source, *others])))
        return list(forms.values())

    def _with_other_ends(self, names: list[str]) -> list[str]:
        others = [
            name.removesuffix(usual) + other
            for usual, other in self.other_ends
            for name in names
            if name.endswith(usual)
        ]
        return names + others

    def is_stack(self, name: str) -> bool:
        return any(_pattern(pattern).fullmatch(name) for pattern in self.stacks)

    def is_ignored(self, name: str) -> bool:
        return any(_pattern(pattern).fullmatch(name) for pattern in self.ignored)


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", r"([^.]+)"))
