"""Rows in plain torch."""

from __future__ import annotations

from itertools import pairwise

import torch

from cadence.core.contract.step import NO_TOKEN
from cadence.kernels.interface.row_ops import (
    FAILED,
    NO_DRAFT,
    Chosen,
    DraftBatch,
    DraftState,
    KeptStates,
    RowState,
    StepBatch,
    Turns,
)
from cadence.kernels.interface.state_ops import StateRuns


class ReferenceRowOps:
    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, batch: StepBatch) -> None:
        rows = batch.rows.long()
        quiet = state.quiet[rows]
        first = (state.num_computed[rows] - quiet).long()  # [R] position of the first token of each run
        batch.seq_lens.copy_(first + batch.query_start.diff())

        run, offset = _places(batch.query_start, batch.ids.shape[0])
        inside = run < len(rows)  # [T]
        run = run.clamp(max=len(rows) - 1)
        num_real = _num_real(state, batch)  # [R]
        real = inside & (offset < num_real[run])
        positions = torch.where(real, first[run] + offset, 0)
        batch.ids.copy_(torch.where(real, state.tokens[rows[run], positions], 0))
        batch.positions.copy_(positions)
        heard = real & (quiet[run] == 0)
        for table, slots in zip(tables, batch.slots, strict=True):
            place = table[rows[run], positions // block_size].long() * block_size + positions % block_size
            slots.copy_(torch.where(heard, place, 0))
        self._gather_lines(batch, first + num_real)

    def _gather_lines(self, batch: StepBatch, ends: torch.Tensor) -> None:
        """ends [R]: tokens of each row with those that are no padding"""
        run, _ = _places(batch.line_start, int(batch.line_start[-1]))
        before_end = batch.line_start[1:][run] - torch.arange(len(run), device=run.device)  # 1 = the run's last token
        batch.line_at[: len(run)] = batch.query_start[1:][run] - before_end
        batch.line_rows[: len(run)] = batch.rows[run]
        batch.line_lengths[: len(run)] = torch.minimum(batch.seq_lens[run] + 1 - before_end, ends[run]).int()

    def commit(
        self, state: RowState, batch: StepBatch, tokens: torch.Tensor, peaks: torch.Tensor, out: torch.Tensor
    ) -> None:
        # A quiet row may stand in the batch several times (padding); all write back what is there.
        rows, num_lines = batch.rows.long(), batch.line_start.diff().long()
        quiet = state.quiet[rows].bool()
        drafts = torch.minimum(state.num_drafts[rows].long(), (num_lines - 1).clamp(min=0))
        position = batch.seq_lens.long() + 1 - num_lines  # [R] of the first token to be taken
        going, taken = ~quiet & (num_lines > 0), torch.zeros_like(rows)
        out.fill_(NO_TOKEN)
        for i in range(int(num_lines.amax())):
            line = batch.line_start[:-1].long() + i
            out[line[(num_lines > i) & (drafts < i)]] = NO_DRAFT
            index = torch.nonzero(going)[:, 0]
            ends, kept = self._take(state, rows[index], position[index] + i, line[index], tokens, peaks, out)
            taken[index] += 1
            going[index] = ~ends & kept & (drafts[index] > i)
        computed = torch.where(num_lines > 0, position + taken - 1, batch.seq_lens.long()).int()
        state.num_computed[rows] = torch.where(quiet, state.num_computed[rows], computed)
        state.num_drafts[rows] = 0

    def _take(
        self,
        state: RowState,
        rows: torch.Tensor,
        position: torch.Tensor,
        line: torch.Tensor,
        tokens: torch.Tensor,
        peaks: torch.Tensor,
        out: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [n] take what was chosen at lines [n] -> which of them end with it, and of which it was the draft"""
        failed = ~peaks[line].isfinite()
        chosen = tokens[line].masked_fill(failed, 0)
        stopped = (state.stops[rows] == chosen[:, None]).any(dim=1) & (position + 1 >= state.min_len[rows])
        ends = failed | stopped | (position + 1 >= state.max_len[rows])
        kept = state.tokens[rows, position] == chosen
        state.tokens[rows, position] = chosen
        state.quiet[rows] = ends.int()
        out[line] = chosen.masked_fill(failed, FAILED)
        return ends, kept

    def turn(self, state: RowState, batch: StepBatch, out: torch.Tensor, turns: Turns) -> None:
        _, done, most, quiet = turns.control.tolist()
        if done < most:
            turns.log[done, : len(out)] = out
        rows = batch.rows.long()
        steady = int(state.quiet[rows].sum()) == quiet and not state.num_drafts[rows].any()
        goes_on = done + 1 < most and steady
        turns.control[:2] = torch.tensor([int(goes_on), done + 1])

    def find_state_runs(self, state: RowState, batch: StepBatch, taken: torch.Tensor, runs: StateRuns) -> None:
        rows, last = batch.rows.long(), len(taken) - 1
        lines = rows.clamp(max=last)
        moves = (state.quiet[rows] == 0) & (lines < last)
        room = (batch.line_start.diff() - 1).clamp(min=0)
        computed, certain = state.num_computed[rows], batch.query_start.diff() - room
        runs.rows.copy_(lines)
        runs.replayed.copy_(torch.where(moves, (computed - taken[lines]).clamp(min=0), 0))
        runs.certain.copy_(torch.where(moves, certain, 0))
        runs.kept.copy_(torch.where(moves, torch.minimum(state.num_drafts[rows], room), 0))
        taken[lines[moves]] = (computed + certain)[moves]

    def find_draft_runs(
        self, proposer: DraftState, batch: DraftBatch, taken: torch.Tensor, runs: StateRuns, following: StateRuns
    ) -> None:
        last = len(taken) - 1
        for of_batch, rows in ((runs, batch.first.rows), (following, batch.next.line_rows)):
            of_batch.rows.copy_(rows.clamp(max=last))
            of_batch.replayed.zero_()
            of_batch.kept.zero_()
        rows, lines = batch.first.rows.long(), runs.rows.long()
        computed = torch.where(lines < last, proposer.computed[rows], taken[lines])
        runs.certain.copy_(computed - taken[lines])
        following.certain.copy_(following.rows < last)
        taken[lines] = computed

    def forget_drafts(self, proposer: DraftState, batch: DraftBatch, taken: torch.Tensor) -> None:
        rows = batch.first.rows[batch.first.rows < len(taken) - 1].long()
        proposer.computed[rows] = taken[rows]

    def copy_lines(self, source: torch.Tensor, target: torch.Tensor, lines: torch.Tensor) -> None:
        at = lines.long()
        target[:, at] = source[:, at]

    def propose_ngram(self, state: RowState, batch: StepBatch, most: torch.Tensor, shortest: int, longest: int) -> None:
        has_line = batch.line_start.diff() > 0
        for row in batch.rows[has_line].tolist():
            length = int(state.num_computed[row]) + 1
            count = min(int(most[row]), int(state.max_len[row]) - 1 - length)
            if state.quiet[row] or count < 1:
                continue
            known = state.tokens[row, :length].tolist()
            end = find_match(known, shortest, longest)
            if end:
                drafts = [known[end + i % (length - end)] for i in range(count)]
                state.tokens[row, length : length + count] = torch.tensor(drafts, dtype=torch.int32)
                state.num_drafts[row] = count

    def drafts(self, state: RowState, batch: StepBatch, most: int) -> torch.Tensor:
        rows = batch.rows.long()
        places = state.num_computed[rows].long()[:, None] + 1 + torch.arange(most, device=rows.device)
        drafts = state.tokens[rows[:, None], places.clamp(max=state.tokens.shape[1] - 1)]
        return torch.cat([state.num_drafts[rows][:, None], drafts], dim=1)

    def begin_drafts(self, state: RowState, proposer: DraftState, batch: DraftBatch) -> None:
        first = batch.first
        for tensor in (first.ids, first.positions, *first.slots):
            tensor.zero_()
        runs = zip(first.rows.tolist(), pairwise(first.query_start.tolist()), pairwise(first.line_start.tolist()))
        for run, (row, (begin, end), (line, line_end)) in enumerate(runs):
            newest, has_line = int(state.num_computed[row]), line < line_end
            limit = newest + (1 if has_line and not proposer.ahead else 0)  # positions that it should have
            idle = bool(state.quiet[row]) or limit > proposer.max_len
            start = 0 if idle else min(int(proposer.computed[row]), newest)
            real = 0 if idle else min(limit - start, end - begin)
            positions = torch.arange(start, start + real)
            first.ids[begin : begin + real] = state.tokens[row, positions + proposer.ahead].clamp(
                max=proposer.num_ids - 1
            )
            first.positions[begin : begin + real] = positions
            for table, slots in zip(proposer.tables, first.slots, strict=True):
                slots[begin : begin + real] = _slots(table[row], positions, proposer.block_size)
            first.seq_lens[run] = start + end - begin
            if not idle:
                proposer.computed[row] = start + real
            if has_line:
                first.line_at[line] = begin + max(real, 1) - 1
                first.line_rows[line] = row
                first.line_lengths[line] = newest + 1
                batch.next.seq_lens[line] = max(start + real, 1)

    def take_draft(
        self, state: RowState, proposer: DraftState, batch: DraftBatch, chosen: Chosen, draft: int, last: bool
    ) -> None:
        following = batch.next
        for line, row in enumerate(following.line_rows.tolist()):
            newest = int(state.num_computed[row])
            place, position = newest + 1 + draft, newest + 1 + draft - proposer.ahead
            has_kept_up = draft > 0 or int(proposer.computed[row]) == newest + 1 - proposer.ahead
            may = not state.quiet[row] and int(state.num_drafts[row]) == draft and has_kept_up
            fits = (
                draft < int(proposer.most[row]) and place < int(state.max_len[row]) - 1 and position < proposer.max_len
            )
            taken = bool(may and fits and chosen[1][line].isfinite())
            if taken:
                state.tokens[row, place] = chosen[0][line]
                state.num_drafts[row] = draft + 1
            if not last:
                if taken and not proposer.ahead:
                    proposer.computed[row] = position + 1
                following.ids[line] = min(int(chosen[0][line]), proposer.num_ids - 1) if taken else 0
                following.positions[line] = position if taken else 0
                following.seq_lens[line] = position + 1 if taken else 1
                following.line_lengths[line] = place + 1
                for table, slots in zip(proposer.tables, following.slots, strict=True):
                    at = torch.tensor([position])
                    slots[line] = int(_slots(table[row], at, proposer.block_size)[0]) if taken else 0

    def keep_states(self, kept: KeptStates, batch: StepBatch, states: tuple[torch.Tensor, ...]) -> None:
        count = batch.num_single
        rows, places = batch.rows[:count].long(), batch.positions[:count] % kept.room
        for ring, each in zip(kept.states, states, strict=True):
            ring[rows, places] = each[:count]

    def kept_states(self, kept: KeptStates, batch: StepBatch) -> tuple[torch.Tensor, ...]:
        run, _ = _places(batch.query_start, batch.ids.shape[0])
        rows = batch.rows.long()[run.clamp(max=batch.rows.shape[0] - 1)]
        return tuple(ring[rows, batch.positions % kept.room] for ring in kept.states)


def _slots(table: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """table [max_blocks] of a row, positions [n] -> [n] int64"""
    return table[positions // block_size].long() * block_size + positions % block_size


def find_match(known: list[int], shortest: int, longest: int) -> int:
    """Where the last tokens stood before: the end of the longest match, of these the latest; 0 if there is none."""
    for size in range(min(longest, len(known) - 1), shortest - 1, -1):
        tail = known[-size:]
        for end in range(len(known) - 1, size - 1, -1):
            if known[end - size : end] == tail:
                return end
    return 0


def _num_real(state: RowState, batch: StepBatch) -> torch.Tensor:
    """[R] tokens of each run that are known or drafts; the rest of it is padding"""
    room = (batch.line_start.diff() - 1).clamp(min=0)
    return batch.query_start.diff() - room + torch.minimum(state.num_drafts[batch.rows.long()], room)


def _places(start: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """start [R + 1]: where runs begin and the last one ends -> of the first `count` places, which run each is in (R
    after the last) and how far from its beginning, [count] int64 each."""
    at = torch.arange(count, device=start.device)
    run = torch.searchsorted(start[1:].contiguous(), at.int(), right=True)
    return run, at - start[run]
