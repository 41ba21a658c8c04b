"""Claude Code, headless: tasks with a tool call whose result goes back, a session resumed, token counts, plain text."""

from __future__ import annotations

import json
from typing import Any

from coding_agent import SECRET, Workspace, workspace
from exchange import CAPITAL, REAL, REAL_URL, SCRIPTED, SCRIPTED_URL, check, expect, finish

QUIET = {
    "ANTHROPIC_API_KEY": "none",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_BUG_COMMAND": "1",
}


def claude(place: Workspace, url: str, model: str, *words: str, **environment: str) -> str:
    names = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_MODEL": model, "ANTHROPIC_SMALL_FAST_MODEL": model}
    return place.run(["claude", "-p", *words], **QUIET, **names, **environment)


def scripted(place: Workspace, *words: str) -> Any:
    return json.loads(claude(place, SCRIPTED_URL, SCRIPTED, *words, "--output-format", "json"))


@check
def task_with_a_file() -> None:
    with workspace() as place:
        told = scripted(place, "Read notes.txt and tell me the word.", "--allowedTools", "Read")
        expect(told["subtype"] == "success" and told["num_turns"] == 2 and SECRET in told["result"], told)


@check
def task_with_a_command() -> None:
    with workspace() as place:
        told = scripted(place, "Run a command and tell me what it prints.", "--allowedTools", "Bash")
        expect(told["subtype"] == "success" and told["num_turns"] == 2 and SECRET in told["result"], told)


@check
def task_with_thinking_and_an_edit() -> None:
    with workspace() as place:
        words = ("Change the notes.", "--allowedTools", "Read,Edit", "--permission-mode", "acceptEdits")
        told = scripted(place, *words)
        expect(told["num_turns"] == 3, told)
        expect((place.project / "notes.txt").read_text() == "The secret word is harbour.\n", told)


@check
def tools_loaded_later() -> None:
    with workspace() as place:
        told = scripted(place, "Look for more tools.", "--allowedTools", "ToolSearch")
        expect(told["num_turns"] == 2 and told["result"] == "I looked.", told)


@check
def session_resumed() -> None:
    with workspace() as place:
        first = scripted(place, "Say hello.")
        second = scripted(place, "Read notes.txt and tell me the word.", "-c", "--allowedTools", "Read")
        expect(second["session_id"] == first["session_id"] and SECRET in second["result"], second)


@check
def stream() -> None:
    with workspace() as place:
        words = ("Say hello.", "--output-format", "stream-json", "--include-partial-messages", "--verbose")
        lines = [json.loads(line) for line in claude(place, SCRIPTED_URL, SCRIPTED, *words).splitlines()]
        deltas = [
            line["event"]["delta"]["text"] for line in lines if line.get("event", {}).get("delta", {}).get("text")
        ]
        expect("".join(deltas) == "Hello from the script." and len(deltas) > 3, deltas)


@check
def structured_output() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    with workspace() as place:
        told = scripted(place, "Give me structured data.", "--json-schema", json.dumps(schema))
        expect(told["structured_output"] == {"city": "Paris"}, told)


@check
def context() -> None:
    with workspace() as place:
        expect("System prompt" in claude(place, SCRIPTED_URL, SCRIPTED, "/context"))


@check
def plain_text_of_a_real_model() -> None:
    """Without the agent's own instructions and tools, which are too much for a model of this size."""
    bare = ("--bare", "--disable-slash-commands", "--tools", "", "--system-prompt", "You are a helpful assistant.")
    with workspace() as place:
        words = (CAPITAL, *bare, "--output-format", "json")
        told = json.loads(claude(place, REAL_URL, REAL, *words, CLAUDE_CODE_MAX_OUTPUT_TOKENS="64"))
        expect(told["subtype"] == "success" and "Paris" in told["result"], told)


finish()
