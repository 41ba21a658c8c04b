"""The runner of the documents finds what is wrong with one: each of these pages is broken in one way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.commands import parse_cadence, split
from tests.docs.network import Network
from tests.docs.servers import Servers
from tests.docs.session import Session


def run_page(tmp_path: Path, text: str) -> None:
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    network = Network()
    session = Session(tmp_path, network, Servers(network, tmp_path))
    try:
        for block in read_blocks("page.md", tmp_path):
            session.run(block)
    finally:
        session.close()
        network.close()


def fenced(language: str, text: str, comment: str = "") -> str:
    return f"{comment}\n```{language}\n{text}\n```\n" if comment else f"```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (fenced("", "cadence models"), "page.md:1: language \\(none\\)"),
        (fenced("text", "cadence models"), "is a command"),
        (fenced("bash", "true\nfalse\ntrue"), "page.md:1: exit status 1"),
        (fenced("bash", "false | cat"), "exit status 1"),
        (fenced("bash", "curl -s http://127.0.0.1:1/"), "exit status 7"),
        (fenced("python", "x = 1\nx.y"), "page.md.*line 3(.|\n)*AttributeError"),
        (fenced("json", "{"), "no json"),
        (fenced("yaml", "a: ["), "no yaml"),
        (fenced("bash", "make no-such", "<!-- not run: runs for long -->"), "no target no-such"),
        (fenced("bash", "pip install -e .", "<!-- not run: installs packages -->"), "name extras"),
        (fenced("bash", "pip install -e '.[fast]'", "<!-- not run: installs packages -->"), "no extra fast"),
        (fenced("bash", "pip install -r requirements/no.txt", "<!-- not run: installs packages -->"), "no file"),
        (fenced("bash", "if true", "<!-- not run: runs for long -->"), "no shell syntax"),
        (fenced("bash", "python -m benchmarks.no", "<!-- not run: runs for long -->"), "no module"),
        (fenced("bash", "X=1 cadence serve m --prot 1 &", "<!-- not run: needs a GPU -->"), "unknown flag --prot"),
        (fenced("bash", "true", "<!-- not run: I do not want to -->"), "the reason must be one of"),
        (fenced("bash", "true", "<!-- run: fails -->"), "says that it fails, and does not"),
        (fenced("bash", "echo a", "<!-- run: server -->"), "must be one `cadence serve`"),
        (fenced("bash", "echo one\necho two") + fenced("text", "two\none", "<!-- output -->"), "'one' was not printed"),
        (fenced("text", "x", "<!-- file: README.md -->"), "over a file of the repository"),
    ],
)
def test_finds(page: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        run_page(tmp_path, page)


def test_blocks_of_a_page_share_a_session(tmp_path: Path) -> None:
    run_page(
        tmp_path,
        fenced("python", "x = 20\nprint('x is', x + 1)")
        + fenced("text", "x is …1", "<!-- output -->")
        + fenced("bash", "KEY='a b'")
        + fenced("json", '{"a": 1}', "<!-- file: config/a.json -->")
        + fenced("bash", 'test "$KEY" = "a b"\ngrep -q a config/a.json\ntest -f Makefile -a -x .venv/bin/python')
        + fenced("python", "assert x == 20")
        + fenced("console", "$ echo hello\nhello")
        + fenced("bash", "ls no-such-file", "<!-- run: fails -->"),
    )


def test_commands_are_told_apart() -> None:
    first = "A=1 cadence serve m \\\n  --port 1 & # the model's own\n"
    text = first + "cat <<'END' | cadence generate - > out.txt\ncadence x\nEND\necho 'a\nb'"
    assert split(text) == [
        ["cadence", "serve", "m", "--port", "1"],
        ["cat"],
        ["cadence", "generate", "-"],
        ["echo", "a\nb"],
    ]


def test_flags_are_read_by_the_programs_own_parser() -> None:
    assert parse_cadence(["serve", "m", "--port", "9000"]).port == "9000"
    with pytest.raises(ValueError, match="port"):
        parse_cadence(["serve", "m", "--port", "high"])
    with pytest.raises(ValueError, match="unknown command"):
        parse_cadence(["sevre"])
