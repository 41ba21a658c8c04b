"""Suffix decoding: every implementation proposes what a table of all suffixes says, and keeps the same texts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.triton_mode import DEVICE, interpreted_examples  # isort: skip - before anything that imports triton

from cadence.device.calls import Calls
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.cpu.suffix import CpuSuffixOps
from cadence.kernels.interface.row_ops import MOST_STOPS, RowState, StepBatch
from cadence.kernels.interface.suffix_ops import MILLION, MOST_FOUND, SuffixCorpus, SuffixOps, SuffixRules
from cadence.kernels.reference.suffix import ReferenceSuffixOps
from cadence.kernels.triton.rows.suffix import TritonSuffixOps
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

MOST = 31  # drafts
Text = list[int]
World = tuple[list["Row"], list[Text], int, int, SuffixRules]


@cache
def implementations() -> dict[str, tuple[SuffixOps, str]]:
    return {
        "reference": (ReferenceSuffixOps(), "cpu"),
        "cpu": (CpuSuffixOps(CpuLibrary(Calls(2))), "cpu"),
        "triton": (TritonSuffixOps(piece=32), DEVICE),
    }


@dataclass
class Row:
    tokens: Text
    most: int = MOST
    room: int = MOST + 2  # tokens until it ends
    quiet: bool = False
    lines: int = 1


def state_of(rows: Sequence[Row], device: str) -> tuple[RowState, StepBatch, torch.Tensor]:
    """-> with a batch of all rows, and their most drafts; counters are columns of one table"""
    columns = [[len(row.tokens) - 1, 0, len(row.tokens) + row.room, row.quiet, 0, row.most] for row in rows]
    table = torch.tensor(columns, dtype=torch.int32, device=device)
    width = max(len(row.tokens) for row in rows) + MOST + 2
    tokens = torch.tensor([row.tokens + [7] * (width - len(row.tokens)) for row in rows], dtype=torch.int32)
    stops = torch.full((len(rows), MOST_STOPS), -1, dtype=torch.int32, device=device)
    state = RowState(tokens.to(device), *table.unbind(1)[:5], stops)
    start = torch.tensor([0, *(row.lines for row in rows)]).cumsum(0).int().to(device)
    empty = torch.empty(0, dtype=torch.int32, device=device)
    named = torch.arange(len(rows), dtype=torch.int32, device=device)
    batch = StepBatch(named, start, start, empty, empty, (), empty, empty, empty, empty, 0, 1)
    return state, batch, table[:, 5]


def corpus_of(capacity: int, most_texts: int, device: str) -> SuffixCorpus:
    tokens = torch.full((capacity,), -1, dtype=torch.int32, device=device)
    span, starts = (torch.zeros(size, dtype=torch.int64, device=device) for size in (3, most_texts))
    return SuffixCorpus(tokens, span, starts)


def proposed(
    ops: SuffixOps, device: str, rows: Sequence[Row], corpus: SuffixCorpus, rules: SuffixRules
) -> list[list[int]]:
    state, batch, most = state_of(rows, device)
    before = state.tokens.clone()
    ops.propose(state, batch, most, corpus, rules)
    found = []
    for index, (row, count) in enumerate(zip(rows, state.num_drafts.tolist(), strict=True)):
        after = slice(len(row.tokens), len(row.tokens) + count)
        found.append(state.tokens[index, after].tolist())
        before[index, after] = state.tokens[index, after]
    assert torch.equal(before, state.tokens), "nothing is written but drafts"
    return found


def remember(ops: SuffixOps, device: str, text: Text, corpus: SuffixCorpus, known: int, tail: int) -> None:
    state, _, _ = state_of([Row([3]), Row(text)], device)
    ops.remember(state, corpus, 1, known, tail)


def kept_texts(texts: Sequence[Text], most_texts: int, capacity: int) -> list[Text]:
    """What a ring holds of them, the oldest first; of the first perhaps the end alone."""
    ring: list[int] = [token for text in texts[-most_texts:] if most_texts for token in (*text, -1)][-capacity:]
    kept: list[Text] = [[]]
    for token in ring:
        if token == -1:
            kept.append([])
        else:
            kept[-1].append(token)
    return [text for text in kept if text]


def expected_drafts(row: Row, texts: Sequence[Text], rules: SuffixRules) -> list[int]:
    """From a table of all suffixes of all texts, the latest text last."""
    if row.quiet or not row.lines:
        return []
    places = defaultdict(list)  # tokens -> (text, place) after them
    for index, text in enumerate([*texts, row.tokens]):
        for place in range(1, len(text)):
            for size in range(1, min(place, rules.depth) + 1):
                places[tuple(text[place - size : place])].append((index, place))
    sizes = [size for size in range(1, rules.depth + 1) if tuple(row.tokens[-size:]) in places]
    size = max((size for size in sizes if size <= len(row.tokens)), default=0)
    if not size:
        return []
    alive, drafts, chance = places[tuple(row.tokens[-size:])][::-1][:MOST_FOUND], [], Fraction(1)
    for i in range(min(row.most, row.room - 1, max(1, int(size * Fraction(rules.factor, MILLION))))):
        known = [*texts, row.tokens + drafts]
        following = {at: known[at[0]][at[1] + i] for at in alive if at[1] + i < len(known[at[0]])}
        counts = Counter(following.values())
        if not counts:
            break
        token = max(counts, key=lambda token: (counts[token], -list(following.values()).index(token)))
        chance *= Fraction(counts[token], len(alive))
        if chance < Fraction(rules.least_share, MILLION):
            break
        drafts.append(token)
        alive = [at for at in alive if following.get(at) == token]
    return drafts


RULES = SuffixRules(depth=4, factor=2 * MILLION, least_share=100_000)


@pytest.mark.parametrize(
    ("row", "texts", "expected"),
    [
        (Row([1, 2, 3, 4, 1, 2]), [], [3, 4, 1, 2]),  # from itself; as many as twice the match
        (Row([5, 5]), [], [5, 5]),
        (Row([1, 2, 1, 2, 1]), [], [2, 1, 2, 1, 2, 1]),  # into its own drafts
        (Row([9, 1, 2]), [[1, 2, 3, 4, 6]], [3, 4, 6]),  # from another; it ends there
        (Row([1, 2]), [[8, 1, 2]], []),  # after which nothing stands
        (Row([8, 1, 2, 5, 9, 2]), [[9, 2, 7], [2, 6]], [7]),  # the longest match, wherever it is
        (Row([1, 2, 9, 1, 2]), [[1, 2, 8, 4, 4, 4], [1, 2, 8, 4, 4, 4]], [8, 4, 4, 4]),  # what followed most often
        (Row([1, 2, 9, 6, 1, 2]), [[1, 2, 8, 4]], [9, 6, 1, 2]),  # of equals the row's own
        (Row([1, 2]), [[1, 2, 8, 4], [1, 2, 9, 6]], [9, 6]),  # of equals the latest
        (Row([3]), [[3, 1], [4, 3, 2]], [2]),
        (Row([1, 2, 3, 4, 1, 2], most=3), [], [3, 4, 1]),
        (Row([1, 2, 3, 4, 1, 2], room=3), [], [3, 4]),  # one token must have room after them
        (Row([1, 2, 3, 4, 1, 2], room=1), [], []),
        (Row([1, 2, 3, 4, 1, 2], most=0), [], []),
        (Row([1, 2, 3, 4, 1, 2], quiet=True), [], []),
        (Row([1, 2, 3, 4, 1, 2], lines=0), [], []),
        (Row([1]), [], []),
        (Row([1]), [[2, 3], [4]], []),
    ],
)
def test_what_followed_before_is_proposed(row: Row, texts: list[Text], expected: list[int]) -> None:
    assert expected_drafts(row, texts, RULES) == expected
    for name, (ops, device) in implementations().items():
        corpus = corpus_of(256, 8, device)
        for text in texts:
            remember(ops, device, text, corpus, known=0, tail=0)
        assert proposed(ops, device, [row], corpus, RULES) == [expected], name


def test_drafts_end_where_too_few_places_go_on_so() -> None:
    texts = [[1, 2, 3, token] for token in (4, 5, 6, 7, 7)]
    for share, expected in ((0, [2, 3, 7]), (400_000, [2, 3, 7]), (400_001, [2, 3]), (MILLION, [2, 3])):
        rules = SuffixRules(4, 9 * MILLION, share)
        assert expected_drafts(Row([1]), texts, rules) == expected
        for name, (ops, device) in implementations().items():
            corpus = corpus_of(256, 8, device)
            for text in texts:
                remember(ops, device, text, corpus, known=0, tail=0)
            assert proposed(ops, device, [Row([1])], corpus, rules) == [expected], name


def test_of_many_places_the_latest_count() -> None:
    """More than are counted say 2, all before those that say 3."""
    row = Row([1, 2] * (MOST_FOUND + 9) + [1, 3] * MOST_FOUND + [1])
    rules = SuffixRules(1, MILLION, 0)
    assert expected_drafts(row, [], rules) == [3]
    for name, (ops, device) in implementations().items():
        assert proposed(ops, device, [row], corpus_of(64, 1, device), rules) == [[3]], name


def test_a_corpus_keeps_what_rows_got_and_the_last_tokens_before() -> None:
    for name, (ops, device) in implementations().items():
        corpus = corpus_of(128, 3, device)  # 8 tokens of a text, with the one after it

        def kept(corpus: SuffixCorpus = corpus) -> list[int]:
            first, end, _ = corpus.span.tolist()
            return [int(corpus.tokens[place % 128]) for place in range(first, end)]

        remember(ops, device, [1, 2, 3, 4, 5], corpus, known=5, tail=3)
        remember(ops, device, [1, 2, 3], corpus, known=5, tail=3)
        assert kept() == [], (name, "nothing was generated")
        remember(ops, device, [1, 2, 3, 4, 5], corpus, known=3, tail=1)
        assert kept() == [3, 4, 5, -1], name
        remember(ops, device, [6, 7], corpus, known=1, tail=9)
        remember(ops, device, list(range(20)), corpus, known=2, tail=2)
        assert kept() == [3, 4, 5, -1, 6, 7, -1, *range(13, 20), -1], (name, "of a long one the end")
        remember(ops, device, [9, 8, 8], corpus, known=1, tail=0)
        assert kept() == [6, 7, -1, *range(13, 20), -1, 8, 8, -1], (name, "three texts")


def test_texts_are_found_wherever_they_lie_in_the_ring() -> None:
    """Texts without a common token, one after another: the oldest and the latest, also across the ring's end."""
    rules, capacity = SuffixRules(3, 9 * MILLION, 0), 128
    texts: list[Text] = []
    corpora = {
        name: (ops, device, corpus_of(capacity, 99, device)) for name, (ops, device) in implementations().items()
    }
    for turn in range(60):
        texts.append([10 * turn + i for i in range(3 + turn % 5)])
        kept = kept_texts(texts, 99, capacity)
        rows = [Row(text[:count]) for text, count in ((kept[0], 1), (kept[-1], 1), (kept[-1], 2), (kept[-2:][0], 1))]
        expected = [expected_drafts(row, kept, rules) for row in rows]
        assert expected[1] == texts[-1][1:]
        for name, (ops, device, corpus) in corpora.items():
            remember(ops, device, texts[-1], corpus, known=1, tail=1)
            size = sum(len(text) + 1 for text in texts)
            assert corpus.span.tolist() == [max(size - capacity, 0), size, turn + 1], name
            if name != "triton" or turn % 20 == 19:  # the interpreter takes its time
                assert proposed(ops, device, rows, corpus, rules) == expected, (name, turn)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Rows, texts that ended before, most texts, capacity, rules: so few different tokens that all is found often."""
    token = st.integers(0, draw(st.integers(1, 3)))
    text = st.lists(token, min_size=2, max_size=15)
    capacity = draw(st.sampled_from((64, 256)))
    texts = draw(st.lists(text, max_size=24))
    rows = [
        Row(
            draw(st.lists(token, min_size=1, max_size=90)),
            most=draw(st.integers(0, MOST)),
            room=draw(st.integers(1, MOST + 2)),
            quiet=draw(st.integers(0, 5)) == 0,
            lines=draw(st.sampled_from((0, 1, 1, 1, 3))),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    factor, share = (draw(st.integers(0, most)) for most in (4 * MILLION, MILLION))
    return (
        rows,
        texts,
        draw(st.sampled_from((0, 1, 2, 5, 30))),
        capacity,
        SuffixRules(draw(st.integers(1, 9)), factor, share),
    )


def check(world: World, names: Sequence[str]) -> None:
    rows, texts, most_texts, capacity, rules = world
    limit = capacity // 16 - 1
    kept = kept_texts([text[-limit:] for text in texts], most_texts, capacity)
    expected = [expected_drafts(row, kept, rules) for row in rows]
    for name in names:
        ops, device = implementations()[name]
        corpus = corpus_of(capacity, most_texts, device)
        for text in texts if most_texts else []:
            remember(ops, device, text, corpus, known=1, tail=1)
        assert proposed(ops, device, rows, corpus, rules) == expected, name


@examples(60, 300)
@given(world=worlds())
def test_all_propose_what_the_table_says(world: World) -> None:
    check(world, ("reference", "cpu"))


@interpreted_examples(6, 40)
@given(world=worlds())
def test_triton_too(world: World) -> None:
    check(world, ("triton",))
