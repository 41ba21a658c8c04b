"""Stop strings: however the text is cut, the same match and the same released text as reading it whole."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadence.core.errors import InvalidRequestError
from cadence.text.stop import NullStop, StopStrings, stop_state
from tests.helpers.wide import examples


def naive(text: str, stops: list[str], unchecked: int) -> tuple[int, str] | None:
    """(end, stop) of the match that ends first past `unchecked` characters; of those ending together, the longest."""
    for end in range(unchecked + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[list[str], list[str], int]:
    letters = st.text("ab", max_size=4)  # two letters: overlaps and near misses everywhere
    stops = draw(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
    deltas = draw(st.lists(letters, max_size=8))
    return stops, deltas, draw(st.integers(0, len(deltas)))


@examples(100, 1000)
@given(case=cut_texts(), include=st.booleans())
@example(case=(["aab"], ["a", "aab"], 0), include=False)  # the match begins inside a failed one
@example(case=(["abcd", "bc"], ["abcd"], 0), include=False)  # the one that begins later ends first
@example(case=(["b", "aab"], ["aa", "b"], 0), include=False)
def test_equals_reading_the_whole_text(case: tuple[list[str], list[str], int], include: bool) -> None:
    stops, deltas, num_unchecked = case
    state = StopStrings(stops, include)
    text = "".join(deltas)
    expected = naive(text, stops, len("".join(deltas[:num_unchecked])))
    released = ""
    for i, delta in enumerate(deltas):
        released += state.push(delta, check=i >= num_unchecked)
        assert state.text == released
    released += state.finish()
    if expected is None:
        assert (state.matched, released) == (None, text)
    else:
        end, stop = expected
        assert (state.matched, released) == (stop, text[: end if include else end - len(stop)])
    assert state.text == released


@examples(50, 300)
@given(case=cut_texts())
def test_holds_back_no_more_than_a_possible_match(case: tuple[list[str], list[str], int]) -> None:
    stops, deltas, _ = case
    state = StopStrings(stops)
    seen = ""
    for delta in deltas:
        state.push(delta)
        seen += delta
        if state.matched is None:
            held = seen[len(state.text) :]
            assert held == "" or any(stop.startswith(held) for stop in stops)


def test_streaming_across_tokens() -> None:
    state = StopStrings(["</answer>", "\n\n"])
    assert [state.push(delta) for delta in ("42", " <", "/ans", "or", "</an", "swer", "> more")] == [
        "42",
        " ",
        "",
        "</ansor",
        "",
        "",
        "",
    ]
    assert (state.matched, state.text, state.finish(), state.push("x")) == ("</answer>", "42 </ansor", "", "")


def test_a_match_before_min_tokens_does_not_count_but_may_begin_there() -> None:
    state = StopStrings(["stop"])
    assert state.push("stop st", check=False) == "stop "
    assert state.push("op now") == ""
    assert (state.matched, state.text) == ("stop", "stop ")


def test_included_stop_strings_need_no_waiting() -> None:
    state = StopStrings(["END"], include_in_output=True)
    assert [state.push("x E"), state.push("ND y")] == ["x E", "ND"]
    assert state.text == "x END"


def test_no_stop_strings() -> None:
    state = stop_state([])
    assert isinstance(state, NullStop)
    assert (state.push("a"), state.push("b"), state.finish(), state.text, state.matched) == ("a", "b", "", "ab", None)


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="stop"):
        stop_state(["ok", ""])
