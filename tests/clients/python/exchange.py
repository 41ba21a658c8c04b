"""What the client scripts share: where the servers are, what is asked, and a line of JSON per check on stdout.

Run as `python SCRIPT SCRIPTED_URL REAL_URL`: the scripted server answers from tests/clients/script.py, the real one
runs SmolLM2."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

SCRIPTED_URL, REAL_URL = (sys.argv[1], sys.argv[2]) if len(sys.argv) > 2 else ("", "")
SCRIPTED, REAL = "scripted", "smollm2"  # names of the models

HELLO, HELLO_ANSWER = "Say hello.", "Hello from the script."
WEATHER = "What is the weather in Paris?"
THINK = "Think about the weather in Paris."
COMPARE = "Compare Paris and Oslo."
AS_DATA = "Give me a city as data."
CAPITAL = "What is the capital of France? Answer in one short sentence."
SUNNY = "sunny, 21 degrees"  # what the tool says about Paris
WEATHER_ANSWER = f"The tool says: {SUNNY}"
TOO_LONG = "word " * 12_000

_failed: list[str] = []


def get_weather(city: str) -> str:
    """The weather in a city."""
    return SUNNY if city == "Paris" else f"rain in {city}"


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Runs `function`, a coroutine function included, and tells how it went under its name."""
    name = function.__name__.replace("_", " ")
    try:
        outcome = function()
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
        _tell(name, "")
    except Exception as error:
        traceback.print_exc()
        _failed.append(name)
        _tell(name, f"{type(error).__name__}: {error}")
    return function


def expect(condition: object, told: object = "") -> None:
    """An assertion that says what was there instead."""
    if not condition:
        raise AssertionError(repr(told)[:500])


def finish() -> None:
    sys.exit(1 if _failed else 0)


def _tell(name: str, why: str) -> None:
    print("CHECK " + json.dumps({"check": name, "failed": why}), flush=True)
