"""The commands of a shell block, one by one, and what can be said of a command without running it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import re
import shlex
import subprocess
import tomllib
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from cadence.config.cli import Parser
from cadence.core.errors import CadenceError
from cadence.entrypoints.cli import main as cli
from cadence.entrypoints.cli import serve
from tests.docs.blocks import ROOT, Block

_OPERATORS = re.compile(r"[();<>|&\n]+")
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)


class _Parsed(BaseException):
    """Raised in place of running a command whose flags are right."""

    def __init__(self, parser: Parser, flags: Namespace) -> None:
        self.parser, self.flags = parser, flags


def split(text: str) -> list[list[str]]:
    """The simple commands of a shell text: words without quotes, assignments before them and redirections left out."""
    commands: list[list[str]] = []
    for line in _joined(text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        commands += _simple(list(lexer))
    return commands


def _joined(text: str) -> list[str]:
    """Logical lines: continued ones joined, here-documents left out, quotes over several lines kept together."""
    lines, end, logical = [], "", ""
    for line in text.replace("\\\n", " ").splitlines():
        if end:
            end = "" if line.strip() == end else end
            continue
        logical += line + "\n"
        if not _closed(logical):
            continue
        if here := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", line):
            end = here[1]
        lines.append(logical)
        logical = ""
    return [*lines, logical] if logical else lines


def _closed(text: str) -> bool:
    """Whether every quote is closed."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _simple(words: list[str]) -> list[list[str]]:
    commands: list[list[str]] = [[]]
    redirected = False
    for word in words:
        if _OPERATORS.fullmatch(word):
            redirected = word in ("<", ">", ">>", ">&", "<<")
            if not redirected:
                commands.append([])
        elif redirected:
            redirected = False
        elif commands[-1] or not _ASSIGNMENT.fullmatch(word):
            commands[-1].append(word)
    return [command for command in commands if command]


def parse_cadence(words: Sequence[str], folder: Path = ROOT) -> Namespace:
    """The flags of `cadence WORDS`, by the program's own parser. A mistake raises ValueError with its message."""
    complaint = io.StringIO()
    try:
        with contextlib.chdir(folder), contextlib.redirect_stderr(complaint):
            _run_up_to_parsing(words)
    except _Parsed as parsed:
        if words[0] == "serve":
            _check_values(parsed.flags)
        return parsed.flags
    except SystemExit as left:
        if left.code:
            raise ValueError(complaint.getvalue().strip()) from None
    return Namespace()  # --help, --version


def parser_of(words: Sequence[str]) -> Parser:
    """The parser that `cadence WORDS` uses."""
    try:
        _run_up_to_parsing(words, parse=lambda parser, argv: Namespace())
    except _Parsed as parsed:
        return parsed.parser
    raise ValueError(f"{words} parses nothing")


def _run_up_to_parsing(
    words: Sequence[str], parse: Callable[[Parser, Sequence[str]], Namespace] = Parser.parse
) -> None:
    def parse_and_leave(parser: Parser, argv: Sequence[str]) -> Namespace:
        raise _Parsed(parser, parse(parser, argv))

    with mock.patch.object(Parser, "parse", parse_and_leave), contextlib.redirect_stdout(io.StringIO()):
        cli.main(list(words))


def _check_values(flags: Namespace) -> None:
    try:
        serve.read_flags(flags)
    except CadenceError as error:
        raise ValueError(str(error)) from None


def check_unrun(block: Block, folder: Path) -> None:
    """A shell block that is not run: its syntax, and what its commands name."""
    checked = subprocess.run(["bash", "-n"], input=block.commands, text=True, capture_output=True, timeout=240)
    if checked.returncode:
        raise block.error(f"no shell syntax: {checked.stderr.strip()}")
    for words in split(block.commands):
        try:
            _check_command(words, folder)
        except ValueError as error:
            raise block.error(f"{shlex.join(words)}: {error}") from None


def _check_command(words: list[str], folder: Path) -> None:
    match [Path(words[0]).name, *words[1:]]:
        case ["cadence", *rest]:
            parse_cadence(rest, folder)
        case ["make", *targets]:
            _check_make([word for word in targets if "=" not in word])
        case ["pip", "install", *rest] | ["python", "-m", "pip", "install", *rest]:
            _check_install(rest)
        case ["python" | "python3", "-m", module, *_]:
            if importlib.util.find_spec(module) is None:
                raise ValueError(f"no module {module}")
        case ["pytest", *rest]:
            for path in (word for word in rest if word.startswith("tests")):
                if not (ROOT / path.split("::")[0]).exists():
                    raise ValueError(f"no file {path}")


def _check_make(targets: list[str]) -> None:
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    if missing := set(targets) - known:
        raise ValueError(f"no target {', '.join(sorted(missing))} in the Makefile")


def _check_install(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for flag, value in itertools.pairwise(words):
        if flag == "-r" and not (ROOT / value).is_file():
            raise ValueError(f"no file {value}")
    for word in words:
        named = re.fullmatch(rf"(\.|{re.escape(project['name'])})(\[(?P<extras>[\w,-]+)\])?", word)
        if named and not named["extras"]:
            raise ValueError(
                f"{word} alone cannot serve: name extras, of {', '.join(project['optional-dependencies'])}"
            )
        if named and (wrong := set(named["extras"].split(",")) - set(project["optional-dependencies"])):
            raise ValueError(f"no extra {', '.join(sorted(wrong))}")
