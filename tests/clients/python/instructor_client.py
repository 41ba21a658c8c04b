"""Instructor: objects by a tool that is demanded, by a JSON schema, and streamed in parts."""

from __future__ import annotations

from typing import Any, Literal

import instructor
import openai
from exchange import CAPITAL, REAL, REAL_URL, check, expect, finish
from pydantic import BaseModel

ASKED: Any = {"model": REAL, "messages": [{"role": "user", "content": CAPITAL}], "max_tokens": 120, "max_retries": 0}


class Capital(BaseModel):
    city: str
    is_large: bool
    continent: Literal["Europe", "Asia", "Africa"]


def client(mode: instructor.Mode) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=f"{REAL_URL}/v1", api_key="none", max_retries=0), mode=mode)


@check
def tools() -> None:
    answer = client(instructor.Mode.TOOLS).create(response_model=Capital, **ASKED)
    expect(isinstance(answer, Capital), answer)


@check
def strict_tools() -> None:
    answer = client(instructor.Mode.TOOLS_STRICT).create(response_model=Capital, **ASKED)
    expect(isinstance(answer, Capital), answer)


@check
def json_schema() -> None:
    answer = client(instructor.Mode.JSON_SCHEMA).create(response_model=Capital, **ASKED)
    expect(isinstance(answer, Capital), answer)


@check
def partial_objects() -> None:
    parts = list(client(instructor.Mode.TOOLS).create_partial(response_model=Capital, **ASKED))
    expect(len(parts) > 1 and parts[-1].continent in ("Europe", "Asia", "Africa"), parts[-1:])


finish()
