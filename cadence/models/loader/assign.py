"""Fills a model's parameters from a source of weights, and accounts for every tensor on both sides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from cadence.core.errors import WeightsError
from cadence.models.layers.experts import Experts
from cadence.models.loader.packing import NoPacking, Packing
from cadence.models.loader.slots import Slot, slots
from cadence.models.loader.source import WeightsSource
from cadence.models.loader.values import as_ours, stored_shape
from cadence.models.mapped_module import MappedModule
from cadence.models.weight_map import Found, Rule

_MOST_LISTED = 8  # names per kind of problem in a message


@dataclass(frozen=True, slots=True)
class Copy:
    """One tensor of the checkpoint and the (part of a) slot it fills."""

    name: str
    rule: Rule
    target: torch.Tensor  # [rows, in] or [rows], a view
    slot: Slot

    def expected_shape(self) -> tuple[int, ...]:
        """As the checkpoint stores it."""
        return stored_shape(tuple(self.target.shape), self.rule)


@dataclass(slots=True)
class Plan:
    copies: list[Copy] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)


Progress = Callable[[Iterable[None], int], Iterable[None]]  # (tensors as they are done, how many there are)


def no_progress(done: Iterable[None], total: int) -> Iterable[None]:
    return done


def assign(
    model: MappedModule,
    source: WeightsSource,
    where: str,
    progress: Progress = no_progress,
    packing: Packing | None = None,
) -> None:
    """`where` names the source in messages. Raises one `WeightsError` for all that does not fit, before any copy."""
    plan, names = check_fit(model, source, where), source.names()
    order = {name: index for index, name in enumerate(names)}
    copies = sorted(plan.copies, key=lambda copy: order[copy.name])
    for _ in progress(_load_all(copies, source, packing or NoPacking()), len(copies)):
        pass


def assign_some(model: MappedModule, source: WeightsSource, names: Collection[str], packing: Packing) -> None:
    """Of a model that was filled before: these tensors, and those that are packed together with them."""
    copies = copies_of(model, source)
    touched = {copy.slot for copy in copies if copy.name in names}
    for together in [each.packed_together for each in model.modules() if isinstance(each, Experts)]:
        beside = {copy.slot for copy in copies if copy.slot.module in together}
        touched |= beside if beside & touched else set()
    for _ in _load_all([copy for copy in copies if copy.slot in touched], source, packing):
        pass


def check_fit(model: MappedModule, source: WeightsSource, where: str) -> Plan:
    """What fills what. Looks at names and shapes alone: the model may be one without memory."""
    names = source.names()
    plan = _plan(model, set(names))
    left_over = [name for name in names if name not in plan.used and not model.weights.is_ignored(name)]
    misshapen = [
        f"{copy.name} (expected {list(copy.expected_shape())}, found {list(source.shape(copy.name))})"
        for copy in plan.copies
        if tuple(source.shape(copy.name)) != copy.expected_shape()
    ]
    problems = {"missing": plan.missing, "left over": left_over, "wrong shape": misshapen}
    found = [f"{kind}: {_listed(items)}" for kind, items in problems.items() if items]
    if found:
        raise WeightsError(f"{where}: weights do not fit {type(model).__name__}; " + "; ".join(found))
    return plan


def copies_of(model: MappedModule, source: WeightsSource) -> list[Copy]:
    """What the source has for a model, which may be one without memory."""
    return _plan(model, set(source.names())).copies


def _load_all(copies: list[Copy], source: WeightsSource, packing: Packing) -> Iterator[None]:
    """Matrices that `packing` takes are filled by it, the rest is copied."""
    groups: dict[Slot, list[Copy]] = {}
    for copy in copies:
        groups.setdefault(copy.slot, []).append(copy)
    left = []
    for slot, group in groups.items():
        stacked = sorted(group, key=lambda copy: copy.target.storage_offset())
        if slot.holders and packing.fill(slot.holders, [(copy.name, copy.rule) for copy in stacked], source):
            yield from (None for _ in group)
        else:
            left.extend(group)
    yield from _copy_all(left, source)


def _copy_all(copies: list[Copy], source: WeightsSource) -> Iterator[None]:
    """Tensors side by side, each by one thread: most are too small to be worth splitting."""
    threads = torch.get_num_threads()

    def copy_one(copy: Copy) -> None:
        copy.target.copy_(as_ours(source.load(copy.name), copy.rule))
        source.release(copy.name)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(copy_one, copies)
    finally:
        torch.set_num_threads(threads)  # a thread that sets its own number also sets that of threads to come


def _plan(model: MappedModule, names: set[str]) -> Plan:
    """What is known under several names (a tied head) may be filled under any one of them."""
    plan = Plan()
    for slot in slots(model):
        forms = [form for name in slot.names for form in model.weights.forms_for(name)]
        attempts = [_sources(form, slot, names) for form in forms] or [([], [])]
        complete = next(
            (copies for copies, missing in attempts if not missing and (copies or _optional(model, slot))), None
        )
        plan.used.update(copy.name for copies, _ in attempts for copy in copies)
        if complete is None:
            plan.missing.extend(attempts[0][1] or [slot.names[0]])
        else:
            plan.copies.extend(complete)
    return plan


def _sources(form: list[Found], slot: Slot, names: set[str]) -> tuple[list[Copy], list[str]]:
    """(what the checkpoint holds for a slot by these rules, names of what it lacks)."""
    copies, missing = [], []
    for rule, candidates in form:
        present = next((candidate for candidate in candidates if candidate in names), None)
        if present is None and not rule.optional:
            missing.append(candidates[0])
        elif present is not None:
            copies.append(Copy(present, rule, slot.part(rule.part), slot))
    return copies, missing


def _optional(model: MappedModule, slot: Slot) -> bool:
    """Whether a checkpoint may lack all that fills it."""
    return any(rule.optional for name in slot.names for rule, _ in model.weights.rules_for(name))


def _listed(items: list[str]) -> str:
    rest = len(items) - _MOST_LISTED
    return ", ".join(items[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")
