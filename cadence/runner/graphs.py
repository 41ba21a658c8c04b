"""Decode forwards captured once per shape and replayed in one call."""

from __future__ import annotations

import bisect
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.device.base import Device, Graph
from cadence.device.calls import CommandGraph

_logger = logging.getLogger(__name__)

_MOST_BURST_ROWS = 64  # a forward of more takes so long that launching it alone costs nothing
_WORTH_CAPTURING = 16  # bursts of a shape that are launched forward by forward before one is captured as a whole

Record = Callable[["DecodeShape", int], torch.Tensor]  # (shape, most tokens of a sequence) -> logits


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """What tells one captured graph from another."""

    num_rows: int  # padding included
    num_forwards: int  # forwards in one launch
    draws: bool  # True: tokens are chosen and committed inside; False: it ends with the logits


@dataclass(frozen=True, slots=True)
class Wanted:
    """Shapes to capture beforehand, the most useful first."""

    first: Sequence[DecodeShape] = ()  # before requests are taken
    later: Sequence[DecodeShape] = ()  # when there is time


class GraphCache(Protocol):
    most_rows: int  # padding included
    most_forwards: int

    def shape(self, num_rows: int, num_forwards: int, together: int, draws: bool) -> DecodeShape:
        """The shape to run these rows in, for at most `num_forwards`, of which `together` may come back at once (a
        graph that was captured as a whole runs as a whole)."""
        ...

    def knows(self, shape: DecodeShape) -> bool:
        """Whether `run` may be called at once; if not, `capture` comes first."""
        ...

    def capture(self, shape: DecodeShape, record: Record) -> None: ...

    def run(self, shape: DecodeShape, record: Record, max_seq_len: int) -> tuple[torch.Tensor, int]:
        """-> logits [num_rows, V] of the last forward, good until the next run, and how many forwards there were: those
        of the shape, or fewer where the rest need not follow at once"""
        ...

    def forget(self) -> None: ...

    def wanted(self) -> Wanted:
        """What is worth capturing before it is met."""
        ...


class NoGraphs:
    """Every forward is launched op by op."""

    most_forwards = 1

    def __init__(self, max_num_seqs: int) -> None:
        self.most_rows = max_num_seqs

    def shape(self, num_rows: int, num_forwards: int, together: int, draws: bool) -> DecodeShape:
        return DecodeShape(num_rows, 1, draws)

    def knows(self, shape: DecodeShape) -> bool:
        return True

    def capture(self, shape: DecodeShape, record: Record) -> None:
        """Nothing is captured."""

    def run(self, shape: DecodeShape, record: Record, max_seq_len: int) -> tuple[torch.Tensor, int]:
        return record(shape, max_seq_len), shape.num_forwards

    def forget(self) -> None:
        """Nothing was kept."""

    def wanted(self) -> Wanted:
        return Wanted()


class RecordedDecodes:
    """A forward is recorded as it runs, for each number of rows when it is first met, and replayed from then on, as
    often as wanted or until a row ends."""

    def __init__(self, device: Device, max_num_seqs: int, most_forwards: int) -> None:
        self._calls = device.calls
        self.most_rows = max_num_seqs
        self.most_forwards = most_forwards
        self._graphs: dict[tuple[int, bool], CommandGraph] = {}  # by number of rows, whether they draw
        self._unrecorded: set[tuple[int, bool]] = set()  # keys torch takes part in: done anew each time

    def shape(self, num_rows: int, num_forwards: int, together: int, draws: bool) -> DecodeShape:
        return DecodeShape(num_rows, min(num_forwards, together, self.most_forwards) if draws else 1, draws)

    def knows(self, shape: DecodeShape) -> bool:
        return True

    def capture(self, shape: DecodeShape, record: Record) -> None:
        """Nothing is captured beforehand."""

    def run(self, shape: DecodeShape, record: Record, max_seq_len: int) -> tuple[torch.Tensor, int]:
        key = (shape.num_rows, shape.draws)
        graph = self._graphs.get(key)
        if graph is not None:
            num_forwards = graph.repeat(shape.num_forwards)
            return graph.output, num_forwards
        once = DecodeShape(shape.num_rows, 1, shape.draws)
        if key in self._unrecorded:
            return record(once, max_seq_len), 1
        graph, logits = self._calls.record(lambda: record(once, max_seq_len))
        if isinstance(graph, CommandGraph):
            self._graphs[key] = graph
        else:
            self._unrecorded.add(key)  # the graph would hold `record`, and whoever owns that holds this object
        return logits, 1

    def forget(self) -> None:
        self._graphs.clear()
        self._unrecorded.clear()

    def wanted(self) -> Wanted:
        """Nothing: a forward is recorded as it runs, at no cost."""
        return Wanted()


class DecodeGraphs:
    """What was not captured beforehand is when it is first met, unless a somewhat larger size was; whole bursts, which
    take a tenth of a second, when they have been met for a while."""

    def __init__(self, device: Device, max_num_seqs: int, max_model_len: int, most_forwards: int) -> None:
        self._device = device
        self._max_model_len = max_model_len
        self._sizes = padded_sizes(max_num_seqs)
        self.most_rows = self._sizes[-1]
        self.most_forwards = most_forwards
        self._graphs: dict[DecodeShape, Graph] = {}
        self._bursts: Counter[int] = Counter()  # met so far, by padded number of rows

    def shape(self, num_rows: int, num_forwards: int, together: int, draws: bool) -> DecodeShape:
        padded = self._padded(num_rows, draws)
        # One forward or a whole burst: what lies between, and bursts of large batches, would be captured for little.
        whole = draws and num_forwards >= self.most_forwards and padded <= _MOST_BURST_ROWS
        self._bursts[padded] += whole
        burst = DecodeShape(padded, self.most_forwards, draws)
        worth = whole and (burst in self._graphs or self._bursts[padded] >= _WORTH_CAPTURING)
        return burst if worth else DecodeShape(padded, 1, draws)

    def _padded(self, num_rows: int, draws: bool) -> int:
        """The least size that holds the rows, or one up to half as large again that is captured already."""
        first = bisect.bisect_left(self._sizes, num_rows)
        least = self._sizes[first]
        for size in self._sizes[first : bisect.bisect_right(self._sizes, least * 3 // 2)]:
            if DecodeShape(size, 1, draws) in self._graphs:
                return size
        return least

    def wanted(self) -> Wanted:
        """First a ladder of sizes on which every number of rows finds a place, and bursts, whose capture would keep a
        newcomer waiting for long; then the sizes between."""
        ladder = [size for size in self._sizes if is_rung(size) or size == self.most_rows]
        between = [size for size in self._sizes if size not in ladder]
        short = [size for size in self._sizes if size <= _MOST_BURST_ROWS and self.most_forwards > 1]
        bursts = [DecodeShape(size, self.most_forwards, True) for size in short]
        return Wanted(_single_steps(ladder) + bursts, _single_steps(between))

    def knows(self, shape: DecodeShape) -> bool:
        return shape in self._graphs

    def capture(self, shape: DecodeShape, record: Record) -> None:
        """Runs the shape once as it is, so that every kernel is compiled, and records it. The caller has named rows
        that may run without effect."""
        start, before = time.perf_counter(), self._device.free_memory()
        record(DecodeShape(shape.num_rows, 1, shape.draws), self._max_model_len)
        self._graphs[shape] = self._device.capture(lambda: record(shape, self._max_model_len))
        seconds, megabytes = time.perf_counter() - start, (before - self._device.free_memory()) / 2**20
        _logger.info(
            "captured %d x %d rows in %.2f s, %.0f MiB", shape.num_forwards, shape.num_rows, seconds, megabytes
        )

    def run(self, shape: DecodeShape, record: Record, max_seq_len: int) -> tuple[torch.Tensor, int]:
        return self._graphs[shape].replay(), shape.num_forwards

    def forget(self) -> None:
        self._graphs.clear()


def _single_steps(sizes: list[int]) -> list[DecodeShape]:
    return [DecodeShape(size, 1, draws) for size in sizes for draws in (True, False)]


def is_rung(size: int) -> bool:
    """Whether a size is on the ladder: all small ones, and from there on 1, 1.5, 2, 3, 4, 6, … times 64."""
    return size <= 64 or size & (size - 1) == 0 or (size % 3 == 0 and (size // 3) & (size // 3 - 1) == 0)


def padded_sizes(most: int) -> list[int]:
    """Batch sizes that are captured: close together where a row more costs much."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, 512, 32), *range(512, most + 64, 64)]
    return sizes[: bisect.bisect_left(sizes, most) + 1]
