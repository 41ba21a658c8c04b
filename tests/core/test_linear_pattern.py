"""Patterns of strangers: what `re` matches is matched, and no pattern takes longer than its states and the text say."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.linear_pattern import MOST_CHARS, MOST_STATES, LinearPattern
from tests.helpers.processor_time import at_most
from tests.helpers.wide import examples

PIECES = ("a", "b", ".", r"\.", r"\d", r"\W", "[ab]", "[^a]", "[]a-]", "(", ")", "(?:", "(?P<n>", "|", "*", "+", "?",
          "*?", "{2}", "{,2}", "{1,}", "{2,3}", "{", "^", "$", r"\A", r"\Z", "1", "(?=", "(?!")  # fmt: skip

TEXTS = st.text("ab.1{", min_size=1, max_size=12)


@examples(150, 3000)
@given(pattern=st.lists(st.sampled_from(PIECES), max_size=9).map("".join), texts=st.lists(TEXTS, max_size=4))
def test_what_is_taken_means_what_it_means_to_re(pattern: str, texts: list[str]) -> None:
    try:
        ours = LinearPattern(pattern)
    except ValueError as error:
        assert repr(pattern) in str(error)
        return
    theirs = re.compile(pattern)
    for text in texts:
        assert ours.match(text) is bool(theirs.match(text)), text


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (".*lm_head", ["lm_head"]),
        (r".*\.mlp\.gate$", ["model.layers.10.mlp.gate"]),
        (r"^(?!.*(mlp|head)).*$", ["model.layers.1.self_attn.q_proj"]),
        (r"model\.layers\.(?:[2-9]|1[0-9])\..*(gate|q_proj)", ["model.layers.10.mlp.gate"]),
        (r".*layers\.\d+\.self_attn.[qkv]_proj", ["model.layers.1.self_attn.q_proj"]),
    ],
)
def test_patterns_of_checkpoints(pattern: str, found: list[str]) -> None:
    names = ["lm_head", "model.layers.1.self_attn.q_proj", "model.layers.10.mlp.gate"]
    assert [name for name in names if LinearPattern(pattern).match(name)] == found


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|a)*b",
        "(a|aa)+$b",
        "(.*a){20}b",
        ".*" * 40 + "b",
        "(a?){60}a{60}b",
        "((a*)*)*b",
        "(?!(a+)+b)(x+x+)+y",
    ],
)
def test_patterns_that_try_for_ever_elsewhere(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each character leads to one step, and a step looks at each state once."""
    made = LinearPattern(pattern)
    steps = 0
    step = made._step

    def counted(places: int, char: str) -> int:
        nonlocal steps
        steps += 1
        assert places < 1 << made.num_states
        return step(places, char)

    monkeypatch.setattr(made, "_step", counted)
    assert made.match("a" * 5000) is False
    assert 0 < steps <= 10_000


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "*a", "a**", "a*+", "[", "[b-a]", r"\b", r"(a)\1", "(?<=a)b", "a(?!b)", "(?i)a", "(?>a)", "\\",
     "{2}", "a{513}", "a{3,2}", "(a{30}){30}", "(" * 40 + ")" * 40, "a" * (MOST_CHARS + 1)],
)  # fmt: skip
def test_what_is_not_taken_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=re.escape(pattern[0])):
        LinearPattern(pattern)


def test_states_are_bounded() -> None:
    assert LinearPattern(f"a{{{MOST_STATES - 1}}}").num_states == MOST_STATES
    with pytest.raises(ValueError, match=str(MOST_STATES)):
        LinearPattern(f"a{{{MOST_STATES}}}")


@pytest.mark.parametrize("pattern", ["(){512}", "(" * 30 + "){512}" * 30, "(" * 20 + "a{0}){512}" + "(){512}){9}" * 19])
def test_repetitions_of_nothing_are_made_once(pattern: str) -> None:
    with at_most(5.0):
        made = LinearPattern(pattern)
    assert made.num_states < 8 and made.match("b")
