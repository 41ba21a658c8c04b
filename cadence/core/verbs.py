"""What an executor can be told beside steps: every verb, with the type of its payload and of its answer, and how the
answers of several ranks become one.

`None` stands for "nothing". A new verb is a line here, one in the worker's table, and a function in
`executor/control.py`; whatever carries messages stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cadence.core.adapter import AdapterOutcome


def _nothing(answers: list[Any]) -> None:
    """All ranks have done it."""


def _take_common(answers: list[list[AdapterOutcome]]) -> list[AdapterOutcome]:
    """An adapter counts when all ranks have read it, and cannot be used where one of them says so."""
    by_path = [{outcome.path: outcome for outcome in answer} for answer in answers]
    shared = [path for path in by_path[0] if all(path in found for found in by_path)]
    for answer in answers:
        answer[:] = [outcome for outcome in answer if outcome.path not in shared]
    return [_agreed(path, [found[path] for found in by_path]) for path in shared]


def _agreed(path: str, outcomes: list[AdapterOutcome]) -> AdapterOutcome:
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if not errors and len({outcome.digest for outcome in outcomes}) > 1:
        errors = ["the adapter changed while it was read"]
    return AdapterOutcome(path, "", errors[0]) if errors else outcomes[0]


@dataclass(frozen=True, slots=True)
class Verb:
    payload: Any  # its type
    answer: Any  # its type
    combined: Callable[[list[Any]], Any] = _nothing  # answers of all ranks, in their order -> the one answer
    cumulative: bool = False  # answers are lists, `combined` takes out what counts, and the rest waits for more


VERBS: dict[str, Verb] = {
    "kv_blocks": Verb(None, int, min),
    "allocate_kv": Verb(int, None),
    "warm_up": Verb(str, None),
    "warm_up_more": Verb(None, bool, any),
    "join_round": Verb(None, None),
    "prepare_adapter": Verb(str, None),
    "prepared_adapters": Verb(None, list[AdapterOutcome], _take_common, cumulative=True),
    "forget_adapter": Verb(str, None),
}
