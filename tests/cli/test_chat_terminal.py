"""`cadence chat` in a pseudo-terminal, against a server that says what it is told to."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.pty_session import ROOT, PtySession
from tests.cli.scripted_server import ScriptedServer, running

PROMPT = "›"
SPEED = "tokens · "
LETTERS = "Air scatters short waves of light more than long ones, and so the sky is blue."
WORDS = tuple(piece for word in LETTERS.split() for piece in (word[:2], word[2:] + " "))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with running(ScriptedServer(WORDS)) as started:
        yield started


@pytest.fixture
def chat(server: ScriptedServer) -> Iterator[PtySession]:
    with PtySession(["chat", "--url", server.url], columns=40) as session:
        session.wait(PROMPT)
        yield session


def asked(server: ScriptedServer) -> str:
    return str(server.bodies[-1]["messages"][-1]["content"])


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_messages_of_several_lines(server: ScriptedServer, chat: PtySession) -> None:
    chat.type("\x1b[200~def f():\r    return 1\r\r/exit\x1b[201~")  # a paste, as terminals send it
    chat.wait("/exit")
    assert not server.bodies  # nothing is sent before Enter
    for keys, message in (
        ("\r", "def f():\n    return 1\n\n/exit"),
        ("one\x1b\rtwo\x0athree\r", "one\ntwo\nthree"),  # Alt-Enter, Ctrl-J
        ("up to\\\rhere\\\\\r", "up to\nhere\\\\"),  # a backslash continues, two do not
    ):
        chat.type(keys)
        chat.wait(SPEED)
        chat.wait(PROMPT)
        assert asked(server) == message
    chat.type("\x04")
    assert chat.leave() == 0


def test_an_answer_is_wrapped_at_words_and_its_speed_is_said(server: ScriptedServer, chat: PtySession) -> None:
    chat.type("why?\r")
    lines = plain(chat.wait(SPEED)).split("\n")
    shown = [line for line in lines if line and "why?" not in line]
    assert shown[:-1] == ["Air scatters short waves of light more", "than long ones, and so the sky is blue."]
    assert re.fullmatch(r"\d+\.\d tok/s · first after \d+\.\d\d s ·", " ".join(plain(chat.wait("token limit")).split()))
    assert shown[-1].strip() == str(len(WORDS))


def test_ctrl_c_ends_the_answer_alone_and_is_not_printed(server: ScriptedServer, chat: PtySession) -> None:
    server.words, server.delay = tuple(f"w{number} " for number in range(1000)), 0.02
    chat.type("go on\r")
    chat.wait("w3")
    chat.type("typed ahead\x03")
    answer = chat.wait("stopped")
    assert "^C" not in answer and "ahead" not in answer
    chat.wait(PROMPT)
    server.words, server.delay = ("done",), 0.0
    chat.type("\x15next\r")  # what was typed ahead is there to be edited: Ctrl-U deletes it
    chat.wait("done")
    assert asked(server) == "next" and len(server.bodies) == 2
    chat.type("\x03")
    chat.wait("Ctrl-D or /exit leaves")


def test_retry_set_and_save(server: ScriptedServer, chat: PtySession, tmp_path: Path) -> None:
    chat.type("/set temperature 9\r")
    chat.wait("temperature")
    chat.wait(PROMPT)
    chat.type("/set temp\t 0.25\r")  # Tab completes
    chat.wait("temperature = 0.25")
    chat.type("hello\r")
    chat.wait(SPEED)
    chat.type("/retry\r")
    chat.wait(SPEED)
    assert server.bodies[0] == server.bodies[1] and server.bodies[0]["temperature"] == 0.25
    chat.type(f"/save {tmp_path}/talk.md\r")
    chat.wait("saved to")
    assert (tmp_path / "talk.md").read_text().count("## You") == 1
    chat.type("/exit\r")
    assert chat.leave() == 0


def test_what_a_model_says_cannot_steer_the_terminal(server: ScriptedServer, chat: PtySession) -> None:
    server.words = ("\x1b]0;owned\x07", "\x1b[2Jhi", "\x9b1m.")
    chat.type("x\r")
    shown = chat.wait(SPEED)
    assert "\x1b]0" not in shown and "\x1b[2J" not in shown and "\x9b" not in shown and "␛[2Jhi" in shown


def test_a_dumb_terminal_gets_no_escapes(server: ScriptedServer) -> None:
    with PtySession(["chat", "--url", server.url], term="dumb") as session:
        session.wait("> ")
        session.type("hello\r")
        session.wait(SPEED)
        session.type("/exit\r")
        assert session.leave() == 0
        assert "\x1b" not in session.seen


def test_a_pipe_gets_the_answers_and_nothing_else(server: ScriptedServer) -> None:
    argv = [sys.executable, "-m", "cadence.entrypoints.cli.main", "chat", "--url", server.url]
    done = subprocess.run(
        argv, input="one\n/set top_k 3\n/retry\n", capture_output=True, text=True, cwd=ROOT, timeout=240
    )
    assert done.returncode == 0 and done.stdout == ("".join(WORDS) + "\n") * 2 and done.stderr == "top_k = 3\n"
    assert "top_k" not in server.bodies[0] and server.bodies[1]["top_k"] == 3
