"""The parts of `make clients` that need no client: the script, skipping with a reason, the table, the recorder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients import environments, run
from tests.clients.catalog import Client
from tests.clients.recorder import Record, recorded
from tests.clients.scripted import NOT_IN_SCRIPT, answer, scripted_server
from tests.clients.table import table

SCRIPT = {"Weather?": ["<call>", "It is {result}"], "Hello": ["Hi"]}


def test_the_script_is_followed_turn_by_turn() -> None:
    asked = "<|turn|>user: Weather?\n<|turn|>assistant: "
    assert answer(asked, SCRIPT) == "<call>"
    told = f"{asked}<call>\n<|turn|>tool: sunny\n<|turn|>assistant: "
    assert answer(told, SCRIPT) == "It is sunny"
    assert answer(f"{told}It is sunny\n<|turn|>user: Hello\n<|turn|>assistant: ", SCRIPT) == "Hi"
    assert answer("<|turn|>user: Who?\n<|turn|>assistant: ", SCRIPT) == NOT_IN_SCRIPT


def test_a_client_that_cannot_be_had_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    outcome = run.run_client(Client("x", "x", "node", "node/x.mjs"), [])
    assert outcome.skipped == "cannot be installed: there is no node on this machine" and not outcome.failed


class Installed:
    """An environment whose client is `script`, run by a shell."""

    def __init__(self, script: str) -> None:
        self._script = script

    def install(self) -> None: ...

    def version(self, package: str) -> str:
        return "1"

    def command(self, script: str) -> list[str]:
        return ["bash", "-c", self._script]

    def arguments(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("script", "passed", "failed"),
    [
        ('echo \'CHECK {"check": "a", "failed": ""}\'', ["a"], []),
        ('echo \'CHECK {"check": "a", "failed": "why"}\'; exit 1', [], ["a"]),
        ("exit 3", [], ["script"]),
        ("sleep 60", [], ["script"]),  # longer than it may
        ("true", [], ["script"]),  # said nothing
    ],
)
def test_what_a_script_says(
    script: str, passed: list[str], failed: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "environment", lambda name: Installed(script))
    monkeypatch.setattr(run, "BUILD", tmp_path)
    outcome = run.run_client(Client("x", "x", "sdk", "x.py", seconds=1.0), [])
    assert (outcome.passed, list(outcome.failed)) == (passed, failed)


def test_the_table() -> None:
    outcomes: list[dict[str, Any]] = [
        {"client": "a", "version": "1", "passed": ["x", "y"], "failed": {}, "skipped": ""},
        {"client": "b", "version": "2", "passed": ["x"], "failed": {"y": "why"}, "skipped": ""},
        {"client": "c", "version": "", "passed": [], "failed": {}, "skipped": "no node"},
    ]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(outcomes).splitlines()]
    assert cells[2:] == [
        ["a", "1", "passed", "x, y"],
        ["b", "2", "failed: y", "x, y"],
        ["c", "-", "skipped: no node", "-"],
    ]


def test_requests_are_recorded(tmp_path: Path) -> None:
    record = Record(tmp_path / "requests.jsonl")
    record.client = "x"
    with scripted_server({"Hello": ["Hi there"]}) as app, recorded(app.url, record) as url:
        body = {"messages": [{"role": "user", "content": "Hello"}], "quux": 1}
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, headers={"Authorization": "Bearer secret"})
        assert reply.json()["choices"][0]["message"]["content"] == "Hi there"
    (entry,) = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert (entry["client"], entry["request"], entry["status"]) == ("x", "POST /v1/chat/completions", 200)
    assert entry["body"] == body and entry["ignored"] == "quux" and "secret" not in json.dumps(entry)


def test_lists_of_requirements_are_complete() -> None:
    """Every environment of the catalogue has its list, and every package there is pinned."""
    for path in (environments.HERE / "requirements").iterdir():
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert lines and all("==" in line for line in lines), path
