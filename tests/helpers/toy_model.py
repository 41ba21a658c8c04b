"""A model without numbers: what it stores for a token, and the token it says next, hash what it reads.

The device half applies plans to tables of its own and reads the past only through the block tables, as attention
does: a request that reads a block that is not its own, or no longer, says something else than the same request alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from cadence.core.contract.encoder_work import EncoderWork
from cadence.core.contract.request import EngineRequest, StopRule
from cadence.core.contract.step import NewRow, StepPlan
from cadence.core.failure import Failure, FailureCode
from cadence.core.inputs.encoder_input import ENCODER
from cadence.core.model.kv_spec import KVLayout, plan_layout
from cadence.core.sampling_params import SamplingParams
from tests.helpers.toy_source import SOURCE, first_visible, layer_of, source_entries, source_of, window_of
from tests.helpers.toy_states import ToyStates, state_of

VOCAB = 11
BROKEN = Failure(FailureCode.BAD_LOGITS, "not a number")  # what the toy device says of a row that fails


def make_layout(windows: tuple[int, ...], block_size: int) -> KVLayout:
    """A group of one layer for each window, SOURCE or what `chunks_of` says, in ascending order."""
    return plan_layout([layer_of(window) for window in windows], block_size, "bfloat16")


def make_request(
    request_id: str, prompt: list[int], max_tokens: int = 4, *, stop: StopRule | None = None, **changes: object
) -> EngineRequest:
    rule = stop or StopRule(frozenset(), frozenset(), 0, max_tokens)
    sampling = SamplingParams(max_tokens=rule.max_tokens or None, min_tokens=rule.min_tokens)
    fields: dict[str, object] = {"params": sampling, "seed": 0, "arrival_time": 0.0}
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, stop=rule, **(fields | changes))  # type: ignore[arg-type]


def entry_of(token: int, position: int, visible: list[int]) -> int:
    """What a layer stores for a token: it depends on everything the token sees."""
    return hash((token, position, *visible))


def entries_of(tokens: list[int], window: int) -> list[int]:
    """What a layer stores for each of these tokens."""
    stored: list[int] = []
    for position, token in enumerate(tokens):
        stored.append(entry_of(token, position, stored[first_visible(window, position) :]))
    return stored


def expected_output(
    request: EngineRequest, windows: tuple[int, ...], max_model_len: int, has_states: bool = False
) -> tuple[list[int], str]:
    """The tokens and the finish reason of a request that is alone in the world, without blocks or steps."""
    tokens = list(request.prompt_token_ids)
    rule = request.stop
    entries: list[list[int]] = [[] for _ in windows]
    source = source_of(request)
    while True:
        for stored, window in zip(entries, windows, strict=True):
            for position in range(len(stored), len(tokens)):
                visible = source if window == SOURCE else stored[first_visible(window, position) : position]
                stored.append(entry_of(tokens[position], position, visible))
        states = (state_of(tokens),) if has_states else ()
        token = hash((*(stored[-1] for stored in entries), *states)) % VOCAB
        tokens.append(token)
        output = tokens[len(request.prompt_token_ids) :]
        if len(output) >= rule.min_tokens and token in rule.eos_token_ids | rule.stop_token_ids:
            return output, "stop"
        if len(output) == rule.max_tokens or len(tokens) == max_model_len:
            return output, "length"


def work(plan: StepPlan) -> list[tuple[int, int, int, int]]:
    """(row, tokens, computed before, lines) of each row."""
    columns = (plan.rows_np, plan.num_tokens_np, plan.num_computed_np, plan.num_samples_np)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@dataclass
class ToyRow:
    request_id: str
    tokens: list[int]
    computed: int
    tables: list[list[int]]
    new: NewRow
    quiet: bool = False  # it has ended: nothing is computed for it any more
    fails: bool = False  # its next token will not be one

    def take(self, token: int) -> None:
        self.tokens.append(token)
        assert len(self.tokens) <= self.new.max_len
        enough = len(self.tokens) - self.new.prompt_len >= self.new.sampling.min_tokens
        self.quiet = (enough and token in self.new.stop_token_ids) or len(self.tokens) == self.new.max_len


class ToyDevice:
    """Carries plans out one after the other, a forward when its result is wanted."""

    def __init__(self, layout: KVLayout, num_rows: int, num_blocks: int, states: ToyStates | None = None) -> None:
        self.states = states
        self.layout = layout
        self.num_rows = num_rows
        self.rows: dict[int, ToyRow] = {}
        self._drafts = random.Random(num_blocks)
        self.kv = [[0] * layout.block_size for _ in range(num_blocks)]
        self.writer = [""] * num_blocks  # request that last wrote into a block

    def apply(self, plan: StepPlan) -> None:
        for row in plan.ended:
            del self.rows[row]
        for content in plan.payloads.get(ENCODER, ()):
            self._encode(content)
        if self.states is not None:
            self.states.save(plan)
        for new in plan.begun:
            self._begin(new)
        for added in plan.blocks:
            table = self.rows[added.row].tables[added.group]
            assert len(table) == added.start, "blocks must be appended"
            table.extend(added.block_ids)
        assert len(set(plan.rows_np.tolist())) == len(plan.rows_np), "a row twice in one step"

    def first_forward(self, plan: StepPlan, errors: dict[int, Failure]) -> list[list[int]]:
        """The tokens of rows that sample, in the order of the plan.

        A model writes all keys of a layer before it reads any. Here a row computes at once what others may go on
        from, so those that began first come first.
        """
        sampled, ages = dict[int, list[int]](), {row: age for age, row in enumerate(self.rows)}
        for row, count, computed, lines in sorted(work(plan), key=lambda item: ages[item[0]]):
            state = self.rows[row]
            if state.quiet:
                sampled[row] = []
                continue
            known = count - max(lines - 1, 0)  # the rest is room for drafts
            assert state.computed <= computed, "a token skipped"
            assert state.computed == computed or len(state.tokens) > state.new.prompt_len, "a token computed twice"
            assert known == 1 or lines <= 1, "drafts are for rows that decode"
            token = self._compute(state, known)
            assert (lines > 0) == (state.computed == len(state.tokens)), "samples at the last token and only there"
            if lines:
                sampled[row] = self._commit(row, token, lines - 1, errors)
        return [sampled[row] for row in plan.rows_np[plan.num_samples_np > 0].tolist()]

    def next_forward(self, plan: StepPlan, errors: dict[int, Failure]) -> list[list[int]]:
        """The same, after the first: each row computes the token it has just got."""
        sampled = []
        for row in plan.rows_np[plan.num_samples_np > 0].tolist():
            state = self.rows[row]
            assert state.quiet or state.computed == len(state.tokens) - 1
            tokens = [] if state.quiet else self._commit(row, self._compute(state, 1), plan.width - 1, errors)
            sampled.append(tokens)
        return sampled

    def _commit(self, row: int, token: int, room: int, errors: dict[int, Failure]) -> list[int]:
        """Some drafts, at most `room`, are proposed after the row's newest token, and some of these are right."""
        state = self.rows[row]
        if state.fails:
            state.quiet = True
            errors[row] = BROKEN
            return []
        drafts = self._drafts.randint(0, max(min(room, state.new.max_len - 1 - len(state.tokens)), 0))
        right = self._drafts.randint(0, drafts)
        taken = [token]
        state.take(token)
        while not state.quiet and len(taken) <= right:
            taken.append(self._compute(state, 1))
            state.take(taken[-1])
        self._spoil(state, drafts - len(taken) + 1)
        return taken

    def _spoil(self, row: ToyRow, count: int) -> None:
        """Keys of drafts that were not kept lie where those of the next tokens will."""
        for group, table in zip(self.layout.groups, row.tables, strict=True):
            for position in range(row.computed, row.computed + count) if group.window != SOURCE else ():
                block = table[position // self.layout.block_size]
                assert block != 0, "nothing may be written to the null block"
                self.kv[block][position % self.layout.block_size] = -1

    def _begin(self, new: NewRow) -> None:
        assert 0 <= new.row < self.num_rows and new.row not in self.rows
        assert new.num_computed < len(new.token_ids_np), "at least one token is computed"
        tables = [list(ids) for ids in new.block_ids]
        tokens = new.token_ids_np.tolist()
        self.rows[new.row] = ToyRow(new.request_id, tokens, new.num_computed, tables, new)
        if self.states is not None:
            self.states.begin(new)

    def _encode(self, content: EncoderWork) -> None:
        size = self.layout.block_size
        for group, ids in zip(self.layout.groups, content.block_ids, strict=True):
            if group.window != SOURCE:
                assert not ids
                continue
            assert len(ids) == -(-content.length // size) and 0 not in ids
            for position, value in enumerate(source_entries(content.token_ids_np.tolist())):
                self.kv[ids[position // size]][position % size] = value

    def _compute(self, row: ToyRow, count: int) -> int:
        computed = row.computed
        assert count >= 1 and computed + count <= len(row.tokens)
        last = []
        for group, table in zip(self.layout.groups, row.tables, strict=True):
            for position in range(computed, computed + count):
                if group.window == SOURCE:
                    source = [self._slot(table, past) for past in range(row.new.payloads[ENCODER])]
                    value = entry_of(row.tokens[position], position, source)
                    continue
                first = first_visible(window_of(group), position)
                visible = [self._slot(table, past) for past in range(first, position)]
                value = entry_of(row.tokens[position], position, visible)
                block = table[position // self.layout.block_size]
                assert block != 0, "nothing may be written to the null block"
                self.kv[block][position % self.layout.block_size] = value
                self.writer[block] = row.request_id
            last.append(value)
        if self.states is not None:
            last.append(self.states.take_in(row.new.row, row.tokens[computed : computed + count]))
        row.computed += count
        return hash(tuple(last)) % VOCAB

    def _slot(self, table: list[int], position: int) -> int:
        block = table[position // self.layout.block_size]
        assert block != 0, "nothing may be read from the null block"
        return self.kv[block][position % self.layout.block_size]
