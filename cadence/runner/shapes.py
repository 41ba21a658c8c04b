"""The shape in which a forward runs: its own, or padded to one that was recorded."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

from cadence.runner.layout import BatchLayout

_MOST_BURST_ROWS = 64  # a forward of more takes so long that launching it alone costs nothing
_WORTH_RECORDING = 16  # bursts of a shape that are launched forward by forward before one is recorded as a whole

PROMPT_SIZES = (32, 64, 128, 192, 256, 384, 512)  # tokens of a recorded forward; more keep the device busy anyway
PROMPT_ROWS = 16
_MOST_SINGLE = 4  # rows of one token, which a recorded forward of prompts does not treat apart


class Until(IntEnum):
    """How far a shape goes."""

    KEYS = 0  # stored, and nothing else
    HIDDEN = 1  # states of every token
    LOGITS = 2  # of every line
    TOKENS = 3  # drawn and committed


@dataclass(frozen=True, slots=True)
class StepShape:
    """What tells one recorded forward, or several in one, from another. Padding is included."""

    num_rows: int
    num_tokens: int
    num_lines: int
    num_single: int
    max_query_len: int
    until: Until
    num_forwards: int = 1
    depth: int = 0  # drafts that a model makes after each forward
    recorded: bool = False  # kept when it is first met
    inputs: tuple[str, ...] = ()  # features by whose input hooks some row gets more than tokens

    @property
    def is_decode(self) -> bool:
        """There is a line after every token."""
        return self.until > Until.HIDDEN and self.num_tokens == self.num_lines

    def with_rows(self, num_rows: int) -> StepShape:
        """Where every row has as many tokens and lines as any: so many of them."""
        width = self.max_query_len
        tokens, single = num_rows * width, num_rows if width == 1 else 0
        return replace(self, num_rows=num_rows, num_tokens=tokens, num_lines=tokens, num_single=single)

    def is_even_as(self, layout: BatchLayout) -> bool:
        """Whether every row of a layout, and of the padding added to it, has as many tokens and lines as any."""
        tokens, lines = self.num_tokens // self.num_rows, self.num_lines // self.num_rows
        fills = tokens * self.num_rows == self.num_tokens and lines * self.num_rows == self.num_lines
        same = layout.num_rows == 0 or (layout.max_query_len, layout.width) == (tokens, lines)
        return fills and same and layout.is_even


def shape_of(layout: BatchLayout, until: Until, depth: int = 0) -> StepShape:
    """As it is, without padding."""
    return StepShape(
        num_rows=layout.num_rows,
        num_tokens=layout.num_tokens,
        num_lines=layout.num_lines,
        num_single=layout.num_single,
        max_query_len=layout.max_query_len,
        until=until,
        depth=depth if until is Until.TOKENS else 0,
        inputs=layout.inputs,
    )


def decode_shape(num_rows: int, num_forwards: int, draws: bool, width: int = 1, depth: int = 0) -> StepShape:
    """`width` tokens and lines of each row."""
    return StepShape(
        num_rows=num_rows,
        num_tokens=num_rows * width,
        num_lines=num_rows * width,
        num_single=num_rows if width == 1 else 0,
        max_query_len=width,
        until=Until.TOKENS if draws else Until.LOGITS,
        num_forwards=num_forwards,
        depth=depth if draws else 0,
        recorded=True,
    )


@dataclass(frozen=True, slots=True)
class WantedShapes:
    """Shapes to record beforehand, the most useful first."""

    first: Sequence[StepShape] = ()  # before requests are taken
    later: Sequence[StepShape] = ()  # when there is time


class Shapes(Protocol):
    most_rows: int  # padding included
    most_tokens: int
    most_lines: int
    most_forwards: int
    pads: bool  # where not, a run has room for no more drafts than there are

    def shape(self, layout: BatchLayout, until: Until, most_forwards: int, depth: int = 0) -> StepShape:
        """To run a layout in, up to `most_forwards` times where there is a line after every token. The shape may end
        before `until`: what is left is done as it is. depth: drafts that a model makes after each forward"""
        ...

    def keys_shape(self, layout: BatchLayout, run: int) -> StepShape:
        """Of a layout without lines, whose runs have `run` tokens at most: as it is, or with so many rows and runs so
        long."""
        ...

    def wanted(self) -> WantedShapes:
        """What is worth recording before it is met."""
        ...


class ExactShapes:
    """Nothing is padded: where recording costs nothing, or nothing is recorded."""

    most_forwards = 1
    pads = False

    def __init__(
        self, max_num_seqs: int, max_num_tokens: int, recorded: bool, width: int = 1, never: Sequence[str] = ()
    ) -> None:
        """width: most lines of a row. never: features whose input hooks' forwards are not recorded"""
        self._never = frozenset(never)
        self.most_rows = max_num_seqs
        self.most_lines = max_num_seqs * width
        self.most_tokens = max(max_num_tokens, self.most_lines)
        self._recorded = recorded

    def shape(self, layout: BatchLayout, until: Until, most_forwards: int, depth: int = 0) -> StepShape:
        exact = shape_of(layout, until, depth)
        recorded = self._recorded and exact.is_decode and not layout.catch_up and self._never.isdisjoint(layout.inputs)
        return replace(exact, recorded=True) if recorded else exact

    def keys_shape(self, layout: BatchLayout, run: int) -> StepShape:
        return replace(shape_of(layout, Until.KEYS), recorded=self._recorded)

    def wanted(self) -> WantedShapes:
        return WantedShapes()


@dataclass(frozen=True, slots=True)
class HookedInputs:
    """Features by whose input hooks forwards get more than tokens."""

    some: tuple[str, ...] = ()  # of those with rows that use it; they come before ...
    always: tuple[str, ...] = ()  # ... those of every forward
    never: tuple[str, ...] = ()  # whose forwards are not recorded: they leave more behind than a recording does


NO_HOOKS = HookedInputs()


class PaddedShapes:
    """Few shapes, each recorded when it is first met if it was not before, unless a somewhat larger one was; whole
    bursts, which take a tenth of a second, when they have been met for a while. Prompts are recorded up to their hidden
    states: a short one is computed faster than its ops can be launched one by one."""

    pads = True

    def __init__(
        self,
        known: Container[StepShape],
        max_num_seqs: int,
        max_num_tokens: int,
        most_forwards: int,
        width: int = 1,
        by_model: bool = False,
        inputs: HookedInputs = NO_HOOKS,
    ) -> None:
        """known: what is recorded already; width: most lines of a row; by_model: drafts are made by one; inputs:
        features with input hooks"""
        self._known = known
        self._sizes = padded_sizes(max_num_seqs)
        self.most_rows = max(self._sizes[-1], PROMPT_ROWS)
        self.most_lines = self.most_rows * width
        self.most_tokens = max(max_num_tokens, self.most_lines, PROMPT_SIZES[-1])
        self.most_forwards = most_forwards
        self._width = width
        self._by_model = by_model
        self._inputs = inputs
        self._bursts: Counter[tuple[int, int]] = Counter()  # met so far, by padded number of rows and width

    def shape(self, layout: BatchLayout, until: Until, most_forwards: int, depth: int = 0) -> StepShape:
        exact = shape_of(layout, until, depth)
        if layout.catch_up or not set(layout.inputs).isdisjoint(self._inputs.never):
            return exact
        if until is Until.TOKENS and exact.is_decode and not layout.is_even:
            return exact  # a decode that draws ends with its tokens: one token of a prompt, beside rows with drafts
        if exact.is_decode and layout.is_even:
            return self._decode(layout, most_forwards, until is Until.TOKENS, exact.depth)
        small = exact.num_tokens <= PROMPT_SIZES[-1] and exact.num_rows <= PROMPT_ROWS >= exact.num_lines
        if not small or exact.num_single > _MOST_SINGLE:
            return exact
        size = PROMPT_SIZES[bisect.bisect_left(PROMPT_SIZES, exact.num_tokens)]
        inputs = layout.inputs
        return StepShape(PROMPT_ROWS, size, PROMPT_ROWS, 0, size, Until.HIDDEN, recorded=True, inputs=inputs)

    def keys_shape(self, layout: BatchLayout, run: int) -> StepShape:
        rows = self._sizes[bisect.bisect_left(self._sizes, layout.num_rows)]
        if rows * run > PROMPT_SIZES[-1]:
            return shape_of(layout, Until.KEYS)
        return StepShape(rows, rows * run, 0, 0, run, Until.KEYS, recorded=True)

    def _decode(self, layout: BatchLayout, num_forwards: int, draws: bool, depth: int) -> StepShape:
        one = replace(decode_shape(layout.num_rows, 1, draws, layout.width, depth), inputs=layout.inputs)
        padded, width = self._padded(one), layout.width
        # One forward or a whole burst: what lies between, and bursts of large batches, would be recorded for little.
        whole = draws and num_forwards >= self.most_forwards and padded.num_rows <= _MOST_BURST_ROWS
        self._bursts[padded.num_rows, width] += whole
        burst = replace(padded, num_forwards=self.most_forwards)
        worth = whole and (burst in self._known or self._bursts[padded.num_rows, width] >= _WORTH_RECORDING)
        return burst if worth else padded

    def _padded(self, shape: StepShape) -> StepShape:
        """With the least size that holds the rows, or one up to half as large again that is recorded already."""
        first = bisect.bisect_left(self._sizes, shape.num_rows)
        least = self._sizes[first]
        for size in self._sizes[first : bisect.bisect_right(self._sizes, least * 3 // 2)]:
            if (found := shape.with_rows(size)) in self._known:
                return found
        return shape.with_rows(least)

    def wanted(self) -> WantedShapes:
        """First a ladder of sizes on which every number of rows finds a place, and bursts, whose capture would keep a
        newcomer waiting for long; then the sizes between."""
        ladder = [size for size in self._sizes if is_rung(size) or size == self._sizes[-1]]
        between = [size for size in self._sizes if size not in ladder]
        short = [size for size in self._sizes if size <= _MOST_BURST_ROWS and self.most_forwards > 1]
        bursts = [replace(decode_shape(size, self.most_forwards, True), inputs=self._inputs.always) for size in short]
        first, later = self._single_forwards(ladder), self._single_forwards(between)
        if self._width > 1:
            first += self._single_forwards(ladder, self._width)
            later += [shape for width in padded_widths(self._width) for shape in self._single_forwards(ladder, width)]
        later = [
            replace(shape, inputs=(name, *self._inputs.always)) for name in self._inputs.some for shape in first
        ] + later
        return WantedShapes(first + bursts, later)

    def _single_forwards(self, sizes: list[int], width: int = 1) -> list[StepShape]:
        depth = width - 1 if self._by_model else 0
        shapes = [decode_shape(size, 1, draws, width, depth) for size in sizes for draws in (True, False)]
        return [replace(shape, inputs=self._inputs.always) for shape in shapes]


def padded_widths(most: int) -> list[int]:
    """Tokens of a row, with drafts, less than `most`: the newest and a power of two."""
    return [1 + (1 << power) for power in range(most.bit_length()) if 1 + (1 << power) < most]


def is_rung(size: int) -> bool:
    """Whether a size is on the ladder: all small ones, and from there on 1, 1.5, 2, 3, 4, 6, … times 64."""
    return size <= 64 or size & (size - 1) == 0 or (size % 3 == 0 and (size // 3) & (size // 3 - 1) == 0)


def padded_sizes(most: int) -> list[int]:
    """Numbers of rows that are recorded: close together where a row more costs much."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 512, 32), *range(512, most + 64, 64)]
    return sizes[: bisect.bisect_left(sizes, most) + 1]
