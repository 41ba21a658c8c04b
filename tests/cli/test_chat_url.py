"""`cadence chat --url` and `cadence complete`: the terminal against a server."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.chat.conversation import History
from cadence.entrypoints.cli.chat.remote_conversation import RemoteConversation
from cadence.entrypoints.cli.chat.settings import ChatSettings
from cadence.entrypoints.cli.main import main
from cadence.entrypoints.cli.remote.answers import Server
from cadence.entrypoints.cli.remote.client import Address
from tests.cli.scripted_server import ScriptedServer, running
from tests.helpers.interrupts import no_collections
from tests.server.helpers import FakeLLM, RunningApp

Said = pytest.CaptureFixture[str]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with running(ScriptedServer()) as started:
        yield started


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_quick_question(server: ScriptedServer, capsys: Said) -> None:
    assert main(["chat", "--url", server.url, "-q", "hello", "--system-prompt", "be brief", "--stats"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "a b c\n" and "2 tokens in, 3 out" in captured.err and "ended by length" in captured.err
    body = server.bodies[0]
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert body["model"] == "scripted" and body["stream"] is True and "max_tokens" not in body


def test_an_answer_without_max_tokens_ends_here(
    server: ScriptedServer, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cadence.entrypoints.cli.remote.answers.MOST_PIECES", 2)
    assert main(["chat", "--url", server.url, "-q", "hello", "--stats"]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["a", "b"] and "ended by length" in captured.err
    assert main(["chat", "--url", server.url, "-q", "hello", "--max-tokens", "9"]) == 0
    assert capsys.readouterr().out.split() == ["a", "b", "c"]


def test_flags_travel_with_the_request(server: ScriptedServer, capsys: Said) -> None:
    flags = ["--temperature", "0.5", "--max-tokens", "2", "--seed", "7", "--stop", "x", "--logit-bias", '{"5": 1.5}']
    assert (
        main(["chat", "--url", server.url + "/v1/", "-q", "hi", "--model-name", "mine", "--api-key", "k", *flags]) == 0
    )
    body = server.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"], body["seed"]) == ("mine", 0.5, 2, 7)
    assert body["stop"] == ["x"] and list(body["logit_bias"].values()) == [1.5]
    assert len(server.heads) == 1 and "Authorization: Bearer k\r\n" in server.heads[0]


def test_a_conversation_through_a_pipe(server: ScriptedServer, typed: Callable[[str], None], capsys: Said) -> None:
    typed("one\ntwo\n/reset\nthree\n")
    assert main(["chat", "--url", server.url]) == 0
    assert capsys.readouterr().out == "a b c\n" * 3
    assert [len(body["messages"]) for body in server.bodies] == [1, 3, 1]
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": "a b c"}


def test_a_failed_turn_is_said_and_the_chat_goes_on(
    server: ScriptedServer, typed: Callable[[str], None], capsys: Said
) -> None:
    server.refuse = {
        0: (429, {"error": {"message": "busy"}}),
        1: (400, {"error": {"message": "too long", "param": "messages"}}),
    }
    typed("one\ntwo\nthree\n")
    assert main(["chat", "--url", server.url]) == 0
    captured = capsys.readouterr()
    assert captured.out == "a b c\n"
    assert captured.err.splitlines() == ["429: busy", "400: too long (/reset starts a new conversation)"]
    assert [len(body["messages"]) for body in server.bodies] == [1, 1, 1]


@pytest.mark.parametrize(
    ("attribute", "said"), [("error_after", "out of luck"), ("break_after", "closed the connection")]
)
def test_a_stream_that_breaks(
    attribute: str, said: str, server: ScriptedServer, typed: Callable[[str], None], capsys: Said
) -> None:
    setattr(server, attribute, 1)
    typed("one\n")
    assert main(["chat", "--url", server.url]) == 0
    assert said in capsys.readouterr().err


@pytest.fixture(autouse=True)
def every_interrupt_arrives() -> Iterator[None]:
    with no_collections():
        yield


def interrupt_when(ready: Callable[[], bool], times: int = 1) -> threading.Thread:
    def press() -> None:
        while not ready():
            time.sleep(0.01)
        time.sleep(0.1)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def test_ctrl_c_stops_the_answer_and_closes_the_connection(server: ScriptedServer) -> None:
    before = signal.getsignal(signal.SIGINT)
    server.words, server.delay = tuple(f"w{i} " for i in range(1000)), 0.02
    talk = RemoteConversation(Server.find(server.url, "", ""), {}, "")
    pieces: list[str] = []
    thread = interrupt_when(lambda: server.num_sent > 10, times=2)
    answer = talk.ask("go on", pieces.append)
    thread.join()
    assert answer.finish_reason == "abort" and answer.text == "".join(pieces) and 0 < answer.output_tokens < 1000
    assert talk.messages[-1] == {"role": "assistant", "content": answer.text}
    assert server.cut.wait(240)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_ends_a_quick_question_with_130(server: ScriptedServer, capsys: Said) -> None:
    server.words, server.delay = ("w ",) * 1000, 0.02
    thread = interrupt_when(lambda: server.num_sent > 30)
    assert main(["chat", "--url", server.url, "-q", "go on"]) == 130
    thread.join()
    assert capsys.readouterr().out.startswith("w w ")


def test_ctrl_c_while_the_server_is_silent(server: ScriptedServer) -> None:
    server.delay = 3600.0
    thread = interrupt_when(lambda: bool(server.bodies))
    assert main(["chat", "--url", server.url, "-q", "go on"]) == 130
    thread.join()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["chat", "--url", "http://127.0.0.1:1", "-q", "x"], "cannot reach http://127.0.0.1:1"),
        (["chat", "--url", "nonsense://x", "-q", "x"], "is not an address"),
        (["chat", "--url", "http://127.0.0.1:1", "--dtype", "float32"], "--dtype is for a model loaded here"),
        (["chat", "--url", "http://127.0.0.1:1", "--top-p", "2"], "top_p"),
        (["complete", "x", "--url", "http://127.0.0.1:1"], "cannot reach"),
        (["complete", "", "--url", "http://127.0.0.1:1"], "the prompt is empty"),
        (["complete", "x", "--dtype", "float32"], "unknown flag --dtype"),
    ],
)
def test_mistakes_are_one_line_and_status_2(argv: list[str], said: str, capsys: Said) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    error = capsys.readouterr().err
    assert left.value.code == 2 and said in error and error.count("\n") == 1


def test_complete(server: ScriptedServer, typed: Callable[[str], None], capsys: Said) -> None:
    assert main(["complete", "once upon", "--url", server.url, "--seed", "3", "--stats"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "a b c\n" and "3 out" in captured.err
    assert (server.bodies[0]["prompt"], server.bodies[0]["max_tokens"], server.bodies[0]["seed"]) == (
        "once upon",
        256,
        3,
    )
    typed("from stdin")
    assert main(["complete", "-", "--url", server.url, "--max-tokens", "2"]) == 0
    assert capsys.readouterr().out == "a b\n" and server.bodies[1]["prompt"] == "from stdin"
    assert main(["complete", "-q", "as a flag", "--url", server.url]) == 0
    assert server.bodies[2]["prompt"] == "as a flag"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000"),
        ("h:8000/v1/", "http://h:8000"),
        ("https://h/api/v1", "https://h:443/api"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    assert str(Address.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "http://", "http://h:99999", "ftp://h", "http://h?x=1"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        Address.parse(text)


class TestOurServer:
    """The real application and routes over a fake engine."""

    @pytest.fixture
    def app(self, serve: Callable[..., RunningApp]) -> RunningApp:
        return serve({"script": "hello there"}, api_key=["secret"])

    def test_chat(self, app: RunningApp, typed: Callable[[str], None], capsys: Said) -> None:
        typed("one\ntwo\n")
        assert main(["chat", "--url", app.url, "--api-key", "secret", "--stats"]) == 0
        captured = capsys.readouterr()
        assert captured.out == "hello there\n" * 2 and captured.err.count("ended by stop") == 2

    def test_complete(self, app: RunningApp, capsys: Said) -> None:
        assert main(["complete", "one", "--url", app.url, "--api-key", "secret"]) == 0
        assert capsys.readouterr().out == "hello there\n"

    def test_a_wrong_key(self, app: RunningApp, capsys: Said) -> None:
        with pytest.raises(SystemExit) as left:
            main(["chat", "--url", app.url, "--api-key", "wrong", "-q", "x"])
        assert left.value.code == 2 and "401" in capsys.readouterr().err

    def test_ctrl_c_aborts_the_request_in_the_engine(self, serve: Callable[..., RunningApp], fake_model: Path) -> None:
        llm = FakeLLM(fake_model, delay=0.1, script="word " * 200)
        app = serve(llm)
        thread = interrupt_when(lambda: bool(llm.started))
        assert main(["chat", "--url", app.url, "-q", "x", "--max-tokens", "500"]) == 130
        thread.join()
        app.settle()
        assert len(llm.aborted) == 1 and app.state.admission.in_flight == 0


def test_history_names_no_one_to_ask() -> None:
    with pytest.raises(TypeError):
        History(ChatSettings({}, 1), "")  # type: ignore[abstract]
