"""`cadence run-batch`: files in, files out, and what happens when a run is cut short."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from cadence.core.errors import ConfigError, EngineDeadError
from cadence.entrypoints.cli.main import main
from cadence.entrypoints.cli.run_batch import command
from cadence.entrypoints.cli.run_batch.files import RequestFile, ResultFile, encode
from tests.server.helpers import FakeLLM

pytestmark = pytest.mark.warm

Said = pytest.CaptureFixture[str]


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    if "chat" in url:
        body.setdefault("messages", [{"role": "user", "content": "hello"}])
    else:
        body.setdefault("prompt", "hello")
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"max_tokens": 4, **body}}


def write(path: Path, entries: list[Any]) -> Path:
    path.write_text("".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in entries))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


class WatchedLLM(FakeLLM):
    """`watch` sees the engine before each token it makes."""

    watch: Callable[[FakeLLM], None] = staticmethod(lambda llm: None)

    def _step(self, request_id: str, step: int) -> Any:
        self.watch(self)
        return super()._step(request_id, step)


class Shell:
    """The command over a fake engine, a new one each time."""

    def __init__(self, folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source, self.target = folder / "in.jsonl", folder / "out.jsonl"
        self.delay = 0.0
        self.watch: Callable[[FakeLLM], None] = lambda llm: None
        self.engines: list[FakeLLM] = []

        async def start(cls: Any, args: Any, on_stage: Any) -> FakeLLM:
            llm = WatchedLLM(model, delay=self.delay)
            llm.watch = self.watch
            self.engines.append(llm)
            return llm

        monkeypatch.setattr("cadence.entrypoints.async_llm.AsyncLLM.start", classmethod(start))

    def run(self, entries: list[Any], *flags: str) -> int:
        write(self.source, entries)
        files = ["-i", str(self.source), "-o", str(self.target)]
        return main(["run-batch", *files, "--model", "fake", *flags])

    def answers(self) -> dict[str, dict[str, Any]]:
        return {record["custom_id"]: record for record in read(self.target)}


@pytest.fixture
def shell(tmp_path: Path, fake_model: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, fake_model, monkeypatch)


def test_answers_are_those_of_the_server(shell: Shell, capsys: Said) -> None:
    chat = line("one", "/v1/chat/completions", model="fake", seed=1)
    assert shell.run([chat, line("two", model="fake"), line("three", n=2)]) == 0
    records = read(shell.target)
    assert [record["custom_id"] for record in records] == ["one", "two", "three"]
    for record in records:
        assert set(record) == {"id", "custom_id", "response", "error"} and record["error"] is None
        assert record["id"].startswith("batch_req_") and record["response"]["status_code"] == 200
    assert len({record["response"]["request_id"] for record in records}) == 3
    body = ChatCompletion.model_validate(records[0]["response"]["body"])
    assert body.choices[0].message.content and body.usage and body.usage.completion_tokens == 4
    assert records[1]["response"]["body"]["choices"][0]["finish_reason"] == "length"
    assert len(records[2]["response"]["body"]["choices"]) == 2
    assert "3 answered, 0 failed" in capsys.readouterr().err


def test_lines_may_be_prompts_alone(shell: Shell) -> None:
    plain = [{"prompt": "hello", "max_tokens": 4}, {"messages": [{"role": "user", "content": "hello"}]}]
    assert shell.run([*plain, {"custom_id": "mine", "prompt": "hello", "max_tokens": 3}]) == 0
    records = read(shell.target)
    assert [record["custom_id"] for record in records] == ["line-1", "line-2", "mine"]
    bodies = [record["response"]["body"] for record in records]
    assert [body["object"] for body in bodies] == ["text_completion", "chat.completion", "text_completion"]
    assert [body["usage"]["completion_tokens"] for body in (bodies[0], bodies[2])] == [4, 3]


def test_values_in_place_of_text(shell: Shell) -> None:
    texts = ["hello", "a dog"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/embeddings": {"input": texts, "encoding_format": "base64"},
        "/v1/score": {"text_1": "hello", "text_2": texts},
        "/v1/rerank": {"query": "hello", "documents": texts, "top_n": 1},
        "/rerank": {"query": "hello", "documents": texts, "return_documents": False},
    }
    urls = [*bodies, "/v1/embeddings"]
    entries = [{"custom_id": str(number), "url": url, "body": bodies[url]} for number, url in enumerate(urls)]
    entries[-1]["body"] = {"input": ["hello", ""]}
    assert shell.run(entries) == 1
    found = [shell.answers()[str(number)]["response"] for number in range(5)]
    assert [one["status_code"] for one in found] == [200, 200, 200, 200, 400]
    assert [type(one["embedding"]) for one in found[0]["body"]["data"]] == [str, str]
    scores = [one["score"] for one in found[1]["body"]["data"]]
    assert scores[0] == pytest.approx(1) and scores[1] < 1
    (best,) = found[2]["body"]["results"]
    assert best["index"] == 0 and best["document"] == {"text": "hello"} and len(found[3]["body"]["results"]) == 2
    assert found[4]["body"]["error"]["param"] == "input[1]"


def test_without_a_terminal_progress_is_lines(shell: Shell, capsys: Said) -> None:
    assert shell.run([line(str(number), max_tokens=1) for number in range(60)]) == 0
    said = [text for text in capsys.readouterr().err.splitlines() if text.endswith("of 60 requests answered")]
    assert len(said) == 21 and said[0].startswith("1 of") and said[-1].startswith("60 of")


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"method": "GET"}, 405, "method"),
        ({"url": "https://api.openai.com/v1/completions"}, 400, "url"),
        ({"url": "/metrics"}, 404, "url"),
        ({"url": 7}, 400, "url"),
        ({"url": "/v1/nonsense"}, 404, None),
        ({"body": None}, 400, "body"),
        ({"body": {"prompt": "x", "stream": True}}, 400, "stream"),
        ({"body": {"input": "x", "encoding_format": "bytes"}}, 400, "encoding_format"),
        ({"body": {"prompt": "x", "temperature": "hot"}}, 400, "temperature"),
        ({"body": {"prompt": "x", "model": "other"}}, 404, "model"),
        ({"body": {"prompt": "x" * 9000}}, 400, None),
    ],
)
def test_a_bad_line_fails_alone(change: dict[str, Any], status: int, param: str | None, shell: Shell) -> None:
    assert shell.run([line("good"), {**line("bad"), **change}, line("fine")]) == 1
    answers = shell.answers()
    assert answers["good"]["response"]["status_code"] == answers["fine"]["response"]["status_code"] == 200
    bad = answers["bad"]
    assert bad["response"]["status_code"] == status and bad["response"]["body"]["error"] == bad["error"]
    assert bad["error"]["message"] and (param is None or bad["error"]["param"] == param)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([line("a"), "{nonsense"], "line 2: not JSON"),
        (["[1]"], "line 1: not a JSON object"),
        ([{"url": "/v1/completions"}], "line 1: custom_id is missing"),
        ([line("a"), line("b"), line("a")], "line 3: custom_id 'a' is that of line 1 too"),
    ],
)
def test_a_file_that_is_no_batch_is_refused_before_the_engine_starts(
    entries: list[Any], said: str, shell: Shell, capsys: Said
) -> None:
    with pytest.raises(SystemExit) as left:
        shell.run(entries)
    assert left.value.code == 2 and said in capsys.readouterr().err
    assert not shell.engines and not shell.target.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-concurrency", "0"], "max_concurrency=0"),
        (["--tool-call-parser", "nonsense"], "nonsense"),
        (["--max-model-len", "x"], "max_model_len"),
        (["--nonsense"], "unknown flag --nonsense"),
    ],
)
def test_mistakes_are_one_line_and_status_2(flags: list[str], said: str, shell: Shell, capsys: Said) -> None:
    with pytest.raises(SystemExit) as left:
        shell.run([line("a")], *flags)
    error = capsys.readouterr().err
    assert left.value.code == 2 and said in error and error.count("\n") == 1 and not shell.engines


def test_missing_and_same_files(tmp_path: Path, capsys: Said) -> None:
    for source, said in (("none.jsonl", "cannot read"), ("out.jsonl", "the same file")):
        with pytest.raises(SystemExit):
            main(["run-batch", "-i", str(tmp_path / source), "-o", str(tmp_path / "out.jsonl")])
        assert said in capsys.readouterr().err


def test_lines_with_an_answer_are_skipped(shell: Shell, capsys: Said) -> None:
    assert shell.run([line("b"), line("d")]) == 0
    before = shell.answers()
    assert shell.run([line(name) for name in "abcd"]) == 0
    assert "2 answered, 0 failed, 2 were there already" in capsys.readouterr().err
    after = shell.answers()
    assert list(after) == list("abcd") and {name: after[name] for name in "bd"} == before
    assert shell.run([line(name) for name in "abcd"]) == 0
    assert len(shell.engines) == 2 and shell.answers() == after  # nothing left to do: no engine
    assert not [path for path in shell.target.parent.iterdir() if path not in (shell.source, shell.target)]


def test_half_a_line_is_dropped_and_asked_again(shell: Shell) -> None:
    assert shell.run([line("a"), line("b")]) == 0
    whole = shell.target.read_bytes()
    shell.target.write_bytes(whole[: len(whole) - 20])
    assert shell.run([line("a"), line("b")]) == 0
    assert list(shell.answers()) == ["a", "b"] and shell.target.read_bytes().endswith(b"}\n")
    assert shell.target.read_bytes().split(b"\n")[0] == whole.split(b"\n")[0]


def test_a_last_line_without_its_end_gets_one(shell: Shell) -> None:
    shell.target.write_text('{"custom_id": "a", "response": {"status_code": 200}}')
    assert shell.run([line("a"), line("b")]) == 0
    assert list(shell.answers()) == ["a", "b"]


def test_failed_lines_can_be_asked_again(shell: Shell) -> None:
    bad = line("bad", temperature="hot")
    assert shell.run([line("good"), bad]) == 1
    good = shell.answers()["good"]
    assert shell.run([line("good"), line("bad")]) == 0  # skipped: it has an answer
    assert shell.answers()["bad"]["response"]["status_code"] == 400
    assert shell.run([line("good"), line("bad")], "--retry-failed") == 0
    assert shell.answers()["bad"]["response"]["status_code"] == 200 and shell.answers()["good"] == good


def test_overwrite(shell: Shell, capsys: Said) -> None:
    for text in ("something else\n", "something else", '{"custom": 1}'):
        shell.target.write_text(text)
        with pytest.raises(SystemExit):
            shell.run([line("a")])
        assert "line 1 is no answer of a batch" in capsys.readouterr().err
        assert shell.target.read_text() == text
    assert shell.run([line("a")], "--overwrite") == 0
    assert list(shell.answers()) == ["a"]


def test_concurrency_is_bounded(shell: Shell) -> None:
    shell.delay = 0.005
    seen: list[int] = []
    shell.watch = lambda llm: seen.append(len(llm._running))
    assert shell.run([line(str(i)) for i in range(12)], "--max-concurrency", "3") == 0
    assert max(seen) == 3 and list(shell.answers()) == [str(i) for i in range(12)]


def test_a_dead_engine_ends_the_run_and_keeps_what_was_answered(shell: Shell, capsys: Said) -> None:
    def watch(llm: FakeLLM) -> None:
        if len(llm.started) > 4:
            llm.die("it ran out of luck")

    shell.watch = watch
    with pytest.raises(SystemExit) as left:
        shell.run([line(str(i)) for i in range(9)], "--max-concurrency", "1")
    assert left.value.code == 1 and "out of luck" in capsys.readouterr().err
    assert all(record["response"]["status_code"] == 200 for record in read(shell.target))
    assert 4 <= len(read(shell.target)) < 9
    shell.watch = lambda llm: None
    assert shell.run([line(str(i)) for i in range(9)]) == 0
    assert list(shell.answers()) == [str(i) for i in range(9)]


def test_a_run_that_is_cancelled_goes_on_later(shell: Shell) -> None:
    shell.delay = 0.01
    original = command.run_batch

    async def interrupted(*arguments: Any) -> None:
        async with asyncio.timeout(600) as limit:
            watch = asyncio.create_task(end_after_an_answer(limit))
            await original(*arguments)
            watch.cancel()

    async def end_after_an_answer(limit: asyncio.Timeout) -> None:
        while not shell.target.exists() or not read(shell.target):
            await asyncio.sleep(0.005)
        limit.reschedule(0)

    entries = [line(str(i)) for i in range(40)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "run_batch", interrupted)
        with pytest.raises(TimeoutError):
            shell.run(entries, "--max-concurrency", "2")
    done = len(read(shell.target))
    assert 0 < done < 40 and not shell.engines[0]._running
    shell.delay = 0.0
    assert shell.run(entries) == 0
    assert list(shell.answers()) == [str(i) for i in range(40)] and len(read(shell.target)) == 40


def test_a_full_queue_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [(429, b'{"error": {"message": "full"}}'), (200, b'{"id": "x"}')]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b'{"prompt": "x"}' and scope["path"] == "/v1/completions"
        status, content = replies.pop(0)
        await send({"type": "http.response.start", "status": status, "headers": [(b"Retry-After", b"0")]})
        await send({"type": "http.response.body", "body": content[:4], "more_body": True})
        await send({"type": "http.response.body", "body": content[4:]})

    entry = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}
    record = asyncio.run(command.answer_line(app, None, entry))  # type: ignore[arg-type]
    assert record["response"]["body"] == {"id": "x"} and not replies


def test_a_file_is_held_by_one_process(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process writes"):
            ResultFile(path)


def test_text_of_any_script_survives(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"custom_id": "ü\u2028日"}, "", {"custom_id": "b"}])
    requests = RequestFile(source)
    assert [requests.read(place)["custom_id"] for place in requests.places] == ["ü\u2028日", "b"]
    requests.close()
    assert json.loads(encode({"custom_id": "half \ud800"}))["custom_id"] == "half ?"


@pytest.mark.slow
def test_a_real_engine(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    model = str(tiny_model("llama"))
    entries = [line(str(i), prompt="the quick brown " * (i + 1), temperature=0) for i in range(6)]
    source = write(tmp_path / "in.jsonl", [*entries, line("chat", "/v1/chat/completions")])
    flags = ["--device", "cpu", "--dtype", "float32", "--max-model-len", "256", "--served-model-name", "tiny"]
    target = tmp_path / "out.jsonl"
    argv = ["run-batch", "-i", str(source), "-o", str(target), "--model", model, *flags]
    assert main([*argv, "--kv-cache-memory-bytes", "16M"]) == 0
    records = read(target)
    assert [record["custom_id"] for record in records] == [*"012345", "chat"]
    assert all(record["response"]["body"]["usage"]["completion_tokens"] <= 4 for record in records)


def test_dead_engines_raise() -> None:
    class Dead:
        async def check_health(self) -> None:
            raise EngineDeadError("gone")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    with pytest.raises(EngineDeadError):
        asyncio.run(command.answer_line(app, Dead(), line("a")))  # type: ignore[arg-type]
