"""Codex CLI, headless: a task with a tool call whose result goes back, thinking, a session resumed, plain text."""

from __future__ import annotations

import json
from typing import Any

from coding_agent import SECRET, Workspace, workspace
from exchange import CAPITAL, REAL, REAL_URL, SCRIPTED, SCRIPTED_URL, check, expect, finish

CONFIG = """
model = "{model}"
model_provider = "cadence"
check_for_update_on_startup = false
{more}
[model_providers.cadence]
name = "Cadence"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
"""
FREE = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")  # the folder is its own


def codex(place: Workspace, url: str, model: str, *words: str, more: str = "") -> list[Any]:
    """The events of a run."""
    folder = place.home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CONFIG.format(url=url, model=model, more=more))
    told = place.run(["codex", "exec", *words], CODEX_HOME=str(folder))
    return [json.loads(line) for line in told.splitlines() if line.startswith("{")]


def texts(events: list[Any]) -> list[str]:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]


def commands(events: list[Any]) -> list[Any]:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in items if item["type"] == "command_execution"]


@check
def task_with_a_command() -> None:
    with workspace() as place:
        events = codex(place, SCRIPTED_URL, SCRIPTED, *FREE, "Print notes.txt and tell me the word.")
        (command,) = commands(events)
        expect(command["exit_code"] == 0 and SECRET in command["aggregated_output"], command)
        expect(SECRET in texts(events)[-1], events)
        expect(events[-1]["type"] == "turn.completed" and events[-1]["usage"]["output_tokens"] > 0, events[-1])


@check
def task_with_thinking() -> None:
    with workspace() as place:
        events = codex(place, SCRIPTED_URL, SCRIPTED, *FREE, "Think, then print notes.txt.")
        expect(len(commands(events)) == 1 and SECRET in texts(events)[-1], events)


@check
def task_with_a_custom_tool() -> None:
    """The agent offers it for models that it knows."""
    with workspace() as place:
        events = codex(place, SCRIPTED_URL, "gpt-5.5", *FREE, "Patch notes.txt.")
        expect((place.project / "notes.txt").read_text() == "The secret word is harbour.\n", events)
        expect("Success" in texts(events)[-1], events)


@check
def task_with_a_tool_of_a_namespace() -> None:
    with workspace() as place:
        events = codex(place, SCRIPTED_URL, SCRIPTED, *FREE, "Start another agent.")
        calls = [event["item"] for event in events if event.get("item", {}).get("type") == "collab_tool_call"]
        expect(calls and calls[-1]["status"] == "completed" and "agent" in texts(events)[-1], events)


@check
def session_resumed() -> None:
    with workspace() as place:
        codex(place, SCRIPTED_URL, SCRIPTED, *FREE, "Say hello.")
        words = ("resume", "--last", *FREE, "Print notes.txt and tell me the word.")
        expect(SECRET in texts(codex(place, SCRIPTED_URL, SCRIPTED, *words))[-1])


@check
def plain_text_of_a_real_model() -> None:
    """Without the agent's own instructions, which are too much for a model of this size."""
    with workspace() as place:
        (place.project / "brief.md").write_text("You are a helpful assistant.")
        more = f'model_instructions_file = "{place.project}/brief.md"\nweb_search = "disabled"\n'
        events = codex(place, REAL_URL, REAL, *FREE, CAPITAL, more=more)
        expect("Paris" in texts(events)[-1], events)


finish()
