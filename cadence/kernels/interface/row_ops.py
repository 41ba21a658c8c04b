"""How rows move on the device from one forward to the next. `reference`, `triton` and `cpu` each offer these ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.kernels.interface.attention_batch import AttentionBatch, LongRun, Sees
from cadence.kernels.interface.state_ops import StateRuns

FAILED = -2  # in place of a token: there was none to choose
NO_DRAFT = -3  # in place of a token: the row had no draft to verify there
Chosen = tuple[torch.Tensor, torch.Tensor]  # tokens of lines and their peaks, as `Ops.draw` gives them
MOST_STOPS = 16  # stop tokens a row knows on the device; the host knows all


@dataclass(frozen=True, slots=True)
class RowState:
    """Tokens and counters of every row. A quiet row has its last token: it computes that one's predecessor again,
    stores no keys and yields no tokens, so that it may stay in a batch until the host has noticed.
    """

    tokens: torch.Tensor  # [num_rows, max_len + 1] int32; after the newest token its drafts
    num_computed: torch.Tensor  # [num_rows] int32, strided: tokens whose KV is in the cache (one more in a quiet row)
    min_len: torch.Tensor  # [num_rows] int32, strided: tokens before which no stop token counts
    max_len: torch.Tensor  # [num_rows] int32, strided: tokens with which a row ends
    quiet: torch.Tensor  # [num_rows] int32, strided: 0 or 1
    num_drafts: torch.Tensor  # [num_rows] int32, strided: proposed, and not yet verified
    stops: torch.Tensor  # [num_rows, MOST_STOPS] int32: tokens that end a row, padded with -1


@dataclass(frozen=True, slots=True)
class StepBatch:
    """R rows compute T tokens in all; after L of these a new one is chosen: the lines.

    Row r computes a run of consecutive tokens, [query_start[r], query_start[r + 1]) of the T; its lines, of the L
    [line_start[r], line_start[r + 1]), are after the last tokens of the run: the first of them after the newest token
    that the row knows, the others after drafts. A run has room for more drafts than its row may have: what is left of
    it is padding. So is what lies after the last run, at most max_query_len tokens.

    The host names rows and runs, `gather` finds the rest. All is written in place: a captured forward reads it there.
    """

    rows: torch.Tensor  # [R] int32
    query_start: torch.Tensor  # [R + 1] int32
    line_start: torch.Tensor  # [R + 1] int32

    ids: torch.Tensor  # [T] int32
    positions: torch.Tensor  # [T] int64: of each token in its row
    slots: tuple[torch.Tensor, ...]  # per KV group [T] int64
    seq_lens: torch.Tensor  # [R] int32: tokens of each row once all of its run are computed, padding included
    line_at: torch.Tensor  # [L] int64, among the T
    line_rows: torch.Tensor  # [L] int32
    line_lengths: torch.Tensor  # [L] int32: tokens before the one to be chosen = its position

    num_single: int  # leading rows that compute one token, known to the host
    max_query_len: int  # longest run, known to the host
    long_runs: tuple[LongRun, ...] = ()  # as `AttentionBatch` has them

    @property
    def all_lines(self) -> bool:
        """There is a line after every token: lines and tokens are the same."""
        return self.ids.shape == self.line_at.shape

    @property
    def one_each(self) -> bool:
        """Every row computes one token and has a line: lines, tokens and rows are the same."""
        return self.max_query_len == 1 and self.all_lines

    def attention(self, block_tables: tuple[torch.Tensor, ...], sees: Sees = Sees.CAUSAL) -> AttentionBatch:
        """block_tables: per group [num_rows, max_blocks] int32"""
        return AttentionBatch(
            rows=self.rows,
            query_start=self.query_start,
            seq_lens=self.seq_lens,
            block_tables=block_tables,
            slots=self.slots,
            num_single=self.num_single,
            max_query_len=self.max_query_len,
            long_runs=self.long_runs,
            sees=sees,
        )


@dataclass(frozen=True, slots=True)
class Turns:
    """A forward that is done again and again without the host, where the host would wait for it anyway."""

    control: torch.Tensor  # [4] int32: whether it is done again; times it was done; most times; quiet rows at first
    log: torch.Tensor  # [most, lines] int32: what was committed each time

    def begin(self, most: int, num_quiet: int) -> None:
        """It may be done `most` times, as long as no more rows are quiet than now, and none has drafts."""
        self.control.numpy()[:] = (0, 0, most, num_quiet)

    @property
    def done(self) -> int:
        return int(self.control.numpy()[1])


@dataclass(frozen=True, slots=True)
class DraftState:
    """What a model that drafts has of every row, and how it counts: at position p it computes the token of p + ahead,
    and keeps its keys in the slot of p."""

    computed: torch.Tensor  # [num_rows] int32, strided: positions whose keys it has, drafts included
    most: torch.Tensor  # [num_rows] int32, strided: drafts that a row may have
    tables: tuple[torch.Tensor, ...]  # per group [num_rows, max_blocks] int32
    block_size: int
    ahead: int  # 1 of a head on the target's states, 0 of a model by itself
    max_len: int  # it computes no position from there on
    num_ids: int  # ids from there on are to it what its last is


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """R rows whose target has just computed; after the S with a line, tokens are drafted one after another."""

    first: StepBatch  # of draft 0: what the proposer lacks of each row. One line at most of a row, after its last token
    next: StepBatch  # of the others: one token of each row with a line. Its line_rows and line_lengths are those above


@dataclass(frozen=True, slots=True)
class KeptStates:
    """The target's states of the last positions of every row, those of position p in place p modulo `room`."""

    states: tuple[torch.Tensor, ...]  # [num_rows, room, H] each, dense

    @property
    def room(self) -> int:
        return self.states[0].shape[1]


class RowOps(Protocol):
    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, batch: StepBatch) -> None:
        """Fills in what the batch's rows are about to compute: of drafts, as many as there are and the run has room
        for. tables: per group [num_rows, max_blocks] int32. Slots of quiet rows are 0; so are ids, positions and slots
        of padding."""
        ...

    def commit(
        self, state: RowState, batch: StepBatch, tokens: torch.Tensor, peaks: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Each row has its run computed, and takes the tokens chosen at its lines: the first, and each further one as
        long as the draft before it is what was chosen in its place. It goes quiet with a stop token, its last token, or
        a failure, and takes no more. Of its drafts none is left.

        tokens [L] int32; peaks [L] float32, not finite where no token could be chosen; out [L] int32: the token,
        FAILED, NO_TOKEN where the row took none, or NO_DRAFT.
        """
        ...

    def turn(self, state: RowState, batch: StepBatch, out: torch.Tensor, turns: Turns) -> None:
        """After `commit`, where the device's memory is the host's: keeps `out` and decides whether to go on."""
        ...

    def propose_ngram(self, state: RowState, batch: StepBatch, most: torch.Tensor, shortest: int, longest: int) -> None:
        """Prompt lookup, for each row of the batch that has a line and is not quiet: what followed the last tokens of
        the row where they stood before becomes its drafts, and is repeated if it is too short. Of all matches of
        `shortest` to `longest` tokens the longest counts, of these the latest. most [num_rows] int32, strided: drafts a
        row may have; after them there must be room for one token more."""
        ...

    def drafts(self, state: RowState, batch: StepBatch, most: int) -> torch.Tensor:
        """After all that proposes: what each row of the batch has, [R, 1 + most] int32 (new): how many drafts, and
        these; after them, anything."""
        ...

    def begin_drafts(self, state: RowState, proposer: DraftState, batch: DraftBatch) -> None:
        """After `commit`: fills in, in batch.first, what the proposer computes of each row: what it lacks of what the
        target has computed, and, of a row with a line and `ahead` 0, the newest token; as far as the run has room. The
        rest is padding, and so is all of a row that is quiet or too long for it. line_lengths are positions of the
        tokens to be drafted, batch.next.seq_lens what their queries see."""
        ...

    def take_draft(
        self, state: RowState, proposer: DraftState, batch: DraftBatch, chosen: Chosen, draft: int, last: bool
    ) -> None:
        """Draft number `draft` of every row with a line is what was chosen: tokens [S] int32 and peaks [S] float32, not
        finite where there was none. A row takes it if it has all before it, the proposer has kept up, it may have so
        many, and there is room for one token more after it. If it is not the last, batch.next becomes what computes
        it; padding of rows that did not take it."""
        ...

    def keep_states(self, kept: KeptStates, batch: StepBatch, states: tuple[torch.Tensor, ...]) -> None:
        """The batch's leading `num_single` rows have computed one token each: keeps the target's states of these, of
        states [T, H] each, as many as are kept and of their dtype."""
        ...

    def kept_states(self, kept: KeptStates, batch: StepBatch) -> tuple[torch.Tensor, ...]:
        """What was kept of the rows' positions, at each token of the batch: [T, H] each (new, contiguous); of padding,
        anything."""
        ...

    def find_state_runs(self, state: RowState, batch: StepBatch, taken: torch.Tensor, runs: StateRuns) -> None:
        """Before a forward of a batch that was gathered: what is to become of the states of its rows. Fills in all of
        `runs`, whose query_start is the batch's.

        taken [lines] int32, strided: tokens that the state of each row has taken in; afterwards those that it has once
        the forward is done. Rows without a line, such as the dummy, share the last, whose state stays as it is."""
        ...

    def find_draft_runs(
        self, proposer: DraftState, batch: DraftBatch, taken: torch.Tensor, runs: StateRuns, following: StateRuns
    ) -> None:
        """After `begin_drafts`: what becomes of the states of a model that drafts. `runs`, of batch.first: its states
        take in all that it computes of each row, and `taken`, as `find_state_runs` has it, is what it has then.
        `following`, of batch.next: states that are tried take in the token of each row."""
        ...

    def forget_drafts(self, proposer: DraftState, batch: DraftBatch, taken: torch.Tensor) -> None:
        """After the last draft: of the batch's rows the proposer has what its states have taken in, and no draft."""
        ...

    def copy_lines(self, source: torch.Tensor, target: torch.Tensor, lines: torch.Tensor) -> None:
        """source and target [layers, n, ...] of one type and shape, strided in their first two dimensions alone:
        target[:, line] = source[:, line] of these lines [R] int32."""
        ...
