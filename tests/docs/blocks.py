"""The fenced blocks of the documents, and the comments before them that say how a block is run.

A comment stands on its own line directly before the fence; readers of the page do not see it:

    <!-- run: server -->        one `cadence serve` command: it runs until the page ends, the blocks after it may ask it
    <!-- run: after-server -->  asks `cadence serve smollm2`, which the test starts when the page has not
    <!-- run: fails -->         shows a mistake: the last command must fail
    <!-- file: NAME -->         the block is the content of a file of that name, which later blocks use
    <!-- given: NAME -->       the block uses a model and files that readers have: NAME is one of GIVEN
    <!-- output -->             (text) printed by the block before it, line by line; `…` stands for anything
    <!-- not run: REASON -->    REASON is one of NOT_RUN; the commands are checked all the same

A block without such a comment is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = ("needs a GPU", "installs packages", "runs for long", "needs other software")
SHELL = ("bash", "sh", "console")
DATA = ("json", "jsonl", "yaml", "toml")
LANGUAGES = (*SHELL, *DATA, "python", "text")
RUN = ("server", "after-server", "fails")
GIVEN = ("speech", "translation", "pictures")

_FENCE = re.compile(r"(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<language>[\w+-]*)\s*$")
_COMMENT = re.compile(r"\s*<!--\s*(?P<key>run|not run|file|given|output)\s*(:\s*(?P<value>.*?))?\s*-->\s*$")


class PageError(AssertionError):
    """Something is wrong with a block; the message begins with the page and the line."""


@dataclass(frozen=True, slots=True)
class Block:
    page: str  # path below the root of the repository
    line: int  # of the opening fence, from 1
    language: str
    text: str
    run: str = ""  # one of RUN, or nothing
    not_run: str = ""  # one of NOT_RUN, or nothing
    file: str = ""
    given: str = ""  # one of GIVEN, or nothing
    is_output: bool = False

    def error(self, message: str) -> PageError:
        return PageError(f"{self.page}:{self.line}: {message}")

    @property
    def commands(self) -> str:
        """The shell text of the block; of a console only what follows the prompt."""
        if self.language != "console":
            return self.text
        return "".join(line[2:] + "\n" for line in self.text.splitlines() if line.startswith("$ "))


def pages() -> list[str]:
    """Every document whose blocks are run."""
    folders = ("docs", "deploy", "examples")
    found = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def read_blocks(page: str, root: Path = ROOT) -> list[Block]:
    lines = (root / page).read_text(encoding="utf-8").splitlines()
    blocks, number = [], 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        end = next((i for i in range(number + 1, len(lines)) if lines[i].strip() == opening["ticks"]), 0)
        if not end:
            raise PageError(f"{page}:{number + 1}: the block has no end")
        indent = len(opening["indent"])
        text = "".join(line[indent:] + "\n" for line in lines[number + 1 : end])
        blocks.append(_block(page, number, opening["language"], text, lines))
        number = end + 1
    return blocks


def _block(page: str, number: int, language: str, text: str, lines: list[str]) -> Block:
    says: dict[str, str] = {}
    before = number - 1
    while before >= 0 and (comment := _COMMENT.match(lines[before])):
        says[comment["key"]] = comment["value"] or ""
        before -= 1
    block = Block(
        page,
        number + 1,
        language,
        text,
        run=says.get("run", ""),
        not_run=says.get("not run", ""),
        file=says.get("file", ""),
        given=says.get("given", ""),
        is_output="output" in says,
    )
    _check(block, says)
    return block


def _check(block: Block, says: dict[str, str]) -> None:
    if block.language not in LANGUAGES and not (block.not_run or block.file):
        raise block.error(f"language {block.language or '(none)'}: name one of {', '.join(LANGUAGES)}")
    if "run" in says and block.run not in RUN:
        raise block.error(f"run: {block.run}: must be one of {', '.join(RUN)}")
    if "not run" in says and block.not_run not in NOT_RUN:
        raise block.error(f"not run: {block.not_run}: the reason must be one of {', '.join(NOT_RUN)}")
    if "given" in says and block.given not in GIVEN:
        raise block.error(f"given: {block.given}: must be one of {', '.join(GIVEN)}")
    if block.is_output and block.language != "text":
        raise block.error("output is a block of text")
    if block.language == "text" and (command := re.search(r"^(\$ .*|(cadence|curl|pip|python) .*)", block.text, re.M)):
        raise block.error(f"{command[0]!r} is a command: the language is bash")
