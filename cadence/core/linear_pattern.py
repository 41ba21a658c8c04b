"""Regular expressions out of files, matched in time that grows with the text and not with the ways through a pattern.

Python's `re` tries one way after another and may do so for ever. Here all ways are followed at once, a character at a
time (Thompson's construction), so that a character costs at most one look at each state of the pattern.

Taken, and meant as `re` means it: characters, `.`, classes, `\\d \\w \\s` and their opposites, groups, `|`, `* + ?
{m,n}`, `^ $ \\A \\Z`, and at the very beginning of a pattern `(?=...)` and `(?!...)`. Anything else is refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

MOST_CHARS = 512  # of a pattern
MOST_STATES = 512
_MOST_GROUPS = 32  # one in another
_MOST_STEPS = 4096  # kept, of one pattern
_ACCEPT = 0  # the state of a text that was matched

_ONE = re.compile(r"\\[dDwWsS]|\\[^a-zA-Z0-9]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[()*+?|^$]", re.DOTALL)  # a character
_REPEAT = re.compile(r"(?:[*+?]|\{(?P<exactly>\d+)\}|\{(?P<least>\d*),(?P<most>\d*)\})\??")
_GROUP = re.compile(r"\((?:\?:|\?P<(?P<name>[^\W\d]\w*)>)?(?!\?)")
_BEGIN, _END = re.compile(r"\^|\\A"), re.compile(r"\$|\\Z")
_AHEAD = re.compile(r"\(\?[=!]")
_SIMPLE = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(slots=True)
class _State:
    next: tuple[int, ...]
    one: re.Pattern[str] | None = None  # the character that leads on; None: none is needed
    only_at: str = ""  # "begin" | "end" of the text


_Piece = Callable[[list[_State], int], int]  # (states, the state after it) -> the state it begins with


class LinearPattern:
    def __init__(self, pattern: str) -> None:
        """ValueError says what is wrong."""
        parsed = _Parser(pattern)
        self._states = [_State(())]
        try:
            self._ahead = [(piece(self._states, _ACCEPT), wanted) for piece, wanted in parsed.ahead()]
            self._first = parsed.whole()(self._states, _ACCEPT)
        except OverflowError:
            limit = f"at most {MOST_STATES} states, {{m,n}} counted as often as it repeats"
            raise ValueError(f"the pattern {pattern[:64]!r} is too large: {limit}") from None
        self._reached = [self._closure(state, "") for state in range(len(self._states))]
        ends = [state for state in range(len(self._states)) if self._states[state].only_at == "end"]
        self._accepts_at_end = _bits([state for state in ends if self._closure(state, "end") & 1])
        self._steps: dict[tuple[int, str], int] = {}

    @property
    def num_states(self) -> int:
        return len(self._states)

    def match(self, text: str) -> bool:
        """Whether it matches the beginning of the text."""
        ahead = all(self._run(state, text) is wanted for state, wanted in self._ahead)
        return ahead and self._run(self._first, text)

    def _run(self, state: int, text: str) -> bool:
        places = self._closure(state, "begin")
        for char in text:
            if places & 1 or not places:
                return bool(places)
            known = self._steps.get((places, char))
            places = self._step(places, char) if known is None else known
        return bool(places & (self._accepts_at_end | 1))

    def _step(self, places: int, char: str) -> int:
        """The states that a character leads to, as a set of bits; so is `places`."""
        found = 0
        for state in _members(places):
            one = self._states[state].one
            if one is not None and one.fullmatch(char):
                found |= self._reached[self._states[state].next[0]]
        if len(self._steps) >= _MOST_STEPS:
            self._steps.clear()
        self._steps[places, char] = found
        return found

    def _closure(self, first: int, at: str) -> int:
        """The states that are reached without a character; at: where in the text, "" = inside."""
        found, waiting = 1 << first, [first]
        while waiting:
            state = self._states[waiting.pop()]
            if state.one is not None or state.only_at not in ("", at):
                continue
            for following in state.next:
                if not found >> following & 1:
                    found |= 1 << following
                    waiting.append(following)
        return found


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text, self._at, self._depth = pattern, 0, 0
        self._names: set[str] = set()  # of groups
        if len(pattern) > MOST_CHARS:
            raise ValueError(f"the pattern {pattern[:64]!r} has {len(pattern)} characters, at most {MOST_CHARS}")

    def ahead(self) -> list[tuple[_Piece, bool]]:
        """What the text must begin with, or must not, whatever follows."""
        found = []
        self._taken(_BEGIN)
        while (opening := self._taken(_AHEAD)) is not None:
            found.append((self._inside(), opening[0].endswith("=")))
        return found

    def whole(self) -> _Piece:
        found = self._either()
        if self._at < len(self._text):
            raise self._wrong("a ) that closes nothing")
        return found

    def _either(self) -> _Piece:
        branches = [self._sequence()]
        while self._text.startswith("|", self._at):
            self._at += 1
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else _one_of(branches)

    def _sequence(self) -> _Piece:
        pieces = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            pieces.append(self._repeated())
        return _in_order(pieces)

    def _repeated(self) -> _Piece:
        for at, name in ((_BEGIN, "begin"), (_END, "end")):
            if self._taken(at) is not None:
                return _only(name)
        piece = self._single()
        found = self._taken(_REPEAT)
        if found is None:
            return piece
        least, most = _SIMPLE.get(found[0][0]) or _counts(found)
        if least > MOST_STATES or (most is not None and not least <= most <= MOST_STATES):
            raise self._wrong(f"{found[0][:24]!r} repeats more than {MOST_STATES} times, or less than nothing")
        return _times(piece, least, most)

    def _single(self) -> _Piece:
        if (group := self._taken(_GROUP)) is not None:
            self._take_name(group["name"])
            return self._inside()
        found = None if _REPEAT.match(self._text, self._at) else self._taken(_ONE)
        if found is None:
            raise self._wrong(f"{self._text[self._at : self._at + 8]!r} is not taken there")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _character(re.compile(found[0], re.DOTALL if found[0] != "." else 0))
        except re.error as error:
            raise self._wrong(str(error)) from None

    def _take_name(self, name: str | None) -> None:
        if name is None:
            return
        if name in self._names:
            raise self._wrong(f"two groups are named {name!r}")
        self._names.add(name)

    def _inside(self) -> _Piece:
        self._depth += 1
        if self._depth > _MOST_GROUPS:
            raise self._wrong(f"more than {_MOST_GROUPS} groups, one in another")
        found = self._either()
        self._depth -= 1
        if not self._text.startswith(")", self._at):
            raise self._wrong("a ( that nothing closes")
        self._at += 1
        return found

    def _taken(self, what: re.Pattern[str]) -> re.Match[str] | None:
        found = what.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found

    def _wrong(self, message: str) -> ValueError:
        return ValueError(f"{self._text[:64]!r} is no regular expression that is read here: {message}")


def _counts(found: re.Match[str]) -> tuple[int, int | None]:
    if found["exactly"] is not None:
        return int(found["exactly"][:9]), int(found["exactly"][:9])
    return int(found["least"][:9] or 0), int(found["most"][:9]) if found["most"] else None


def _add(states: list[_State], state: _State) -> int:
    if len(states) >= MOST_STATES:
        raise OverflowError
    states.append(state)
    return len(states) - 1


def _character(one: re.Pattern[str]) -> _Piece:
    return lambda states, after: _add(states, _State((after,), one=one))


def _only(at: str) -> _Piece:
    return lambda states, after: _add(states, _State((after,), only_at=at))


def _in_order(pieces: list[_Piece]) -> _Piece:
    def build(states: list[_State], after: int) -> int:
        for piece in reversed(pieces):
            after = piece(states, after)
        return after

    return build


def _one_of(pieces: list[_Piece]) -> _Piece:
    return lambda states, after: _add(states, _State(tuple(piece(states, after) for piece in pieces)))


def _times(piece: _Piece, least: int, most: int | None) -> _Piece:
    def build(states: list[_State], after: int) -> int:
        if most is None:
            fork = _add(states, _State((after,)))
            states[fork].next = (piece(states, fork), after)
            after = fork
        else:
            end = after
            for _ in range(most - least):
                after = _add(states, _State((piece(states, after), end)))
        for _ in range(least):
            size = len(states)
            after = piece(states, after)
            if len(states) == size:  # of nothing: as often as one likes is once
                break
        return after

    return build


def _bits(members: list[int]) -> int:
    return sum(1 << member for member in members)


def _members(bits: int) -> list[int]:
    return [place for place, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
