"""Writes docs/combinations.md from the features and cells: `python -m tests.matrix.page`."""

from __future__ import annotations

from pathlib import Path

from tests.matrix.features import CELLS, ENGINE, MODEL, ONE_OR_OTHER, REFUSED, REQUEST, Cell, Feature, name_of
from tests.matrix.points import MANY

_NUMBERS = ("no", "one", "two", "three", "four", "five")

PAGE = Path(__file__).parents[2] / "docs" / "combinations.md"

_TEXT = """\
# What combines with what

Everything with everything, but for {num_refused} pairs that are refused. The {num_features} features below make
{num_cells} pairs; each is a cell of `tests/matrix`,
which runs the two together on small float32 models and holds them to what the plain engine gives (one forward per plan,
one plan at a time, all prompts at once, nothing cached; the same type of KV cache): the same tokens, texts, finish and
stop reasons, and logprobs and embeddings within 0.00001. It also checks that a feature was truly on: bursts were
several forwards long, requests were preempted, prefixes were found, graphs were replayed, aborts came in mid-burst,
rows of two adapters and of none were in one plan. `make test` runs each engine feature alone on two models,
and every two of them together in one of {num_many} engines with many features on the first; each pair of request
features runs on at least three of these engines. `make wide` also runs every two engine features by themselves, on both
models, and all requests on each engine feature.

## Of a model

{model}

Each request of such a model brings a content for its encoder, or a picture or two among its tokens; of models with
states one has no attention, another has it in some layers. Of models that see, one has tokens that turn by lines and
columns of pictures. `make test` runs all of them on engines that together have
every feature, `make wide` on all of the engines.

## Of an engine

{engine}

## Of a request

{request}

A host processor has a say between any two forwards, so plans with such a request are one forward long; a device
processor runs inside bursts. A row that a grammar holds waits for the host before each of its tokens: it computes one
forward of a burst, the others go on. A stop string is found in the text, by the host: what a burst computed beyond it
is dropped. A row with an adapter runs in bursts and graphs beside rows with another one or with none; a draft has no
adapter.

## One or the other

These pairs cannot be two settings of one engine or one request. Requests of such pairs run side by side in one batch.

{one_or_other}

## Refused

{refused}

This page is written by `python -m tests.matrix.page`; a test holds it to the matrix.
"""


def render() -> str:
    return _TEXT.format(
        num_features=len(MODEL + ENGINE + REQUEST),
        num_cells=len(CELLS),
        num_refused=_NUMBERS[len(REFUSED)],
        num_many=len(MANY),
        model=_table(MODEL),
        engine=_table(ENGINE),
        request=_table(REQUEST),
        refused="\n".join(f"- {name_of(cell)}: {why}." for cell, why in REFUSED.items()),
        one_or_other="\n".join(f"- {pair}: {why}." for pair, why in _grouped().items()),
    )


def _table(features: tuple[Feature, ...]) -> str:
    rows = [f"| {feature.name} | {feature.how} |" for feature in features]
    return "\n".join(["| Feature | How it comes about |", "|---|---|", *rows])


def _grouped() -> dict[str, str]:
    """Pairs that share a reason, under one name."""
    by_reason: dict[str, list[Cell]] = {}
    for cell, why in ONE_OR_OTHER.items():
        by_reason.setdefault(why, []).append(cell)
    return {_common(cells): why for why, cells in by_reason.items()}


def _common(cells: list[Cell]) -> str:
    if len(cells) == 1:
        return name_of(cells[0])
    shared = set.intersection(*map(set, cells))
    if not shared:
        return "; ".join(map(name_of, cells))
    return f"{shared.pop()} x every other feature of a request but an adapter"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
