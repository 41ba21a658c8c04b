"""Word wrap for text that arrives in pieces, by the columns that characters take in a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

MIN_COLUMNS = 20  # a narrower terminal breaks lines itself
_BULLET = re.compile(r"[-*+•]|\d{1,3}[.)]")
_FENCES = ("```", "~~~")
_CLOSING = frozenset(
    "、。，．：；！？）］｝〉》」』】〕…ー々ッャュョァィゥェォっゃゅょぁぃぅぇぉ"
)  # never begins a line
_OPENING = frozenset("（［｛〈《「『【〔")  # never ends one
# Control characters, which would steer the terminal, as pictures of themselves. Line feed and tab stay.
_PICTURES: dict[int, int | None] = {code: 0x2400 + code for code in range(32) if code not in (9, 10)}
_PICTURES |= {13: None, 127: 0x2421, **dict.fromkeys(range(128, 160), 0xFFFD)}


def printable(text: str) -> str:
    return text.translate(_PICTURES)


def char_width(char: str) -> int:
    """Columns of one character: 2 for East Asian wide ones and emoji, 0 for combining and format characters."""
    if " " <= char <= "~":
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class WordWrap:
    """`feed` returns what to print now. A word is held back until it ends, so that a line is never corrected.

    Lines of code between fences are left alone; what follows a bullet or an indent is aligned with it.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self.column = 0  # of the cursor
        self._word = ""
        self._word_width = 0
        self._gap = ""  # white space before the word
        self._indent = 0  # columns, of the lines that continue this one
        self._line_begins = True  # no word of this line is printed yet
        self._overlong = False  # in a word that fits no line: printed as it comes
        self._fence = ""  # of the code we are in
        self._code_line = ""  # its first characters, to see its fence

    def feed(self, text: str) -> str:
        width = self._width()
        out: list[str] = []
        for char in printable(text):
            if char == "\n":
                self._end_line(out, width)
            elif self._fence and not self._word:
                self._code_line += char if len(self._code_line) < 80 else ""
                out.append(char)
                self.column += char_width(char)
            elif char in " \t":
                self._end_word(out, width)
                self._gap += char if char == " " else " " * (8 - (self.column + len(self._gap)) % 8)
            else:
                self._add(char, out, width)
        return "".join(out)

    def finish(self) -> str:
        """What was held back."""
        out: list[str] = []
        self._end_word(out, self._width())
        self._gap = ""
        return "".join(out)

    def _width(self) -> int:
        """The last column stays empty: terminals differ in what they do there."""
        columns = self._columns() - 1
        return columns if columns >= MIN_COLUMNS else 1 << 30

    def _add(self, char: str, out: list[str], width: int) -> None:
        columns = char_width(char)
        if self._overlong:
            out.append(char)
            self.column += columns
            return
        if self._word and _may_break(self._word[-1], char, columns):
            self._end_word(out, width)
        self._word += char
        self._word_width += columns
        if self._indent + self._word_width > width:
            self._end_word(out, width)
            self._overlong = True

    def _end_word(self, out: list[str], width: int) -> None:
        self._overlong = False
        if not self._word:
            return
        if self.column + len(self._gap) + self._word_width > width and not self._line_begins:
            out.append("\n" + " " * self._indent)
            self.column = self._indent
        else:
            out.append(self._gap)
            self.column += len(self._gap)
        if self._line_begins:
            self._begin_line(width)
        out.append(self._word)
        self.column += self._word_width
        self._word, self._word_width, self._gap = "", 0, ""

    def _begin_line(self, width: int) -> None:
        self._line_begins = False
        bullet = self._word_width + 1 if _BULLET.fullmatch(self._word) else 0
        self._indent = min(self.column + bullet, width // 2)
        if self._word.startswith(_FENCES):
            self._fence = self._word[:3]

    def _end_line(self, out: list[str], width: int) -> None:
        self._end_word(out, width)
        if _closes(self._fence, self._code_line.strip()):
            self._fence = ""
        self._code_line = ""
        out.append("\n")
        self.column = self._indent = 0
        self._gap, self._line_begins = "", True


def _closes(fence: str, line: str) -> bool:
    return bool(fence) and line.startswith(fence) and not line.strip(fence[0])


def _may_break(before: str, char: str, columns: int) -> bool:
    """Between wide characters there are no spaces: a line may break at any of them but before closing marks."""
    if columns == 0 or char in _CLOSING or before in _OPENING:
        return False
    return columns == 2 or char_width(before) == 2
