"""What the scripted server answers: questions as clients ask them, and the answers of the model, turn by turn."""

from __future__ import annotations

import json


def call(tool: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


PATCH = """*** Begin Patch
*** Update File: notes.txt
@@
-The secret word is lighthouse.
+The secret word is harbour.
*** End Patch
"""
CHANGE = call("Edit", file_path="notes.txt", old_string="lighthouse", new_string="harbour")
WEATHER = call("get_weather", city="Paris")

SCRIPT: dict[str, list[str]] = {
    "What is the weather in Paris?": [WEATHER, "The tool says: {result}"],
    "Think about the weather in Paris.": [
        f"<think>I should ask the tool.</think>{WEATHER}",
        "<think>Now I know.</think>The tool says: {result}",
    ],
    "Compare Paris and Oslo.": [f"{WEATHER}\n{call('get_weather', city='Oslo')}", "Last I heard: {result}"],
    "Say hello.": ["Hello from the script."],
    "Give me a city as data.": [call("final_result", name="Paris", country="France")],
    # Claude Code
    "Read notes.txt and tell me the word.": [call("Read", file_path="notes.txt"), "The file says: {result}"],
    "Run a command and tell me what it prints.": [
        call("Bash", command="cat notes.txt", description="Print the notes"),
        "The command printed: {result}",
    ],
    "Change the notes.": [
        f"<think>First I read them.</think>{call('Read', file_path='notes.txt')}",
        f"<think>Now I change them.</think>{CHANGE}",
        "It is done.",
    ],
    "Look for more tools.": [call("ToolSearch", query="select:WebFetch", max_results=5), "I looked."],
    "Give me structured data.": [call("StructuredOutput", city="Paris"), "Here it is."],
    # Codex CLI
    "Patch notes.txt.": [call("apply_patch", input=PATCH), "It said: {result}"],
    "Start another agent.": [call("multi_agent_v1__spawn_agent", message="Say hello."), "It said: {result}"],
    "Think, then print notes.txt.": [
        f"<think>I print it.</think>Let me see. {call('exec_command', cmd='cat notes.txt')}",
        "<think>Now I know.</think>The command printed: {result}",
    ],
    "Print notes.txt and tell me the word.": [
        call("exec_command", cmd="cat notes.txt"),
        "The command printed: {result}",
    ],
}
