"""Hostile values in fields that matter beside others alone: demanded calls in formats of their own, beam search,
adapters that come while the server runs. None is an internal error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cadence.core.errors import CadenceError
from cadence.entrypoints.server.chat.constraint import constraint_of
from cadence.entrypoints.server.chat.formats import AnswerFormats
from cadence.entrypoints.server.chat.tools.formats.registry import tool_format
from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.body import parse_body
from cadence.entrypoints.server.protocol.chat import ChatCompletionBody
from tests.hostile.bodies import join, pairs_of, with_field
from tests.hostile.schema import Slot, seed_slots
from tests.hostile.seeds import ON_DEMAND, SEEDS
from tests.hostile.values import Value, fixed
from tests.server.helpers import FakeLLM
from tests.server.test_completions import Serve
from tests.server.test_forced_calls import job

JSON = {"content-type": "application/json"}
FORCED = next(body for body in SEEDS["/v1/chat/completions"] if body.get("tool_choice") == "required")
BEAM = next(body for body in SEEDS["/v1/completions"] if "length_penalty" in body)


def values(*kinds: str) -> list[Value]:
    return [value for value in fixed() if value.kind in kinds and len(value.text) < 20_000]


@pytest.mark.parametrize("format", ["qwen3_coder", "pythonic", "gemma4", "hermes"])
def test_schemas_of_demanded_calls(format: str) -> None:
    """Every structure in every place of a tool's schema is written out, or refused."""
    formats, outcomes = AnswerFormats(tool_format(format)), []
    for slot in [slot for slot in seed_slots("tools", FORCED["tools"]) if ".parameters" in slot.path]:
        for value in [value for value in values("array", "object", "boolean") if len(value.text) < 2000]:
            body = join(with_field(pairs_of(FORCED), "tools", slot.fill(value.text)))
            try:
                asked = parse_body(ChatCompletionBody, body, Ignored())
                asked.check()
                outcomes.append(constraint_of(job(asked.tools or (), "required"), formats, "") is not None)
            except (CadenceError, ApiError):
                outcomes.append(False)
    assert True in outcomes and False in outcomes


def post(app: Any, path: str, body: dict[str, Any], field: str, some: list[Value]) -> list[int]:
    statuses = []
    with app.client() as client:
        for value in some:
            content = join(with_field(pairs_of(body), field, Slot(field, field, {}).fill(value.text)))
            reply = client.post(path, content=content, headers=JSON)
            assert reply.status_code in (200, 400, 404), (value.name, reply.text)
            if reply.status_code == 400:
                assert json.loads(reply.content)["error"]["message"], value.name
            statuses.append(reply.status_code)
    return statuses


def test_penalties_of_beam_search(serve: Serve) -> None:
    app = serve()
    assert set(post(app, "/v1/completions", BEAM, "length_penalty", values("number"))) == {200, 400}
    with app.client() as client:
        error = client.post("/v1/completions", json={**BEAM, "length_penalty": 1e40}).json()["error"]
    assert error["param"] == "length_penalty" and "between -40.0 and 40.0" in error["message"]


def test_paths_of_adapters(serve: Serve, fake_model: Path) -> None:
    app = serve(FakeLLM(fake_model, enable_lora=True), allow_runtime_lora_updating=True)
    (body,) = ON_DEMAND["/v1/load_lora_adapter"]
    assert set(post(app, "/v1/load_lora_adapter", body, "lora_path", values("string"))) <= {400, 404}
    with app.client() as client:
        for path in ("a\0b", "/" + "a" * 300, "/a" * 3000):
            reply = client.post("/v1/load_lora_adapter", json={**body, "lora_path": path})
            assert reply.status_code == 400 and "lora_path cannot be" in reply.json()["error"]["message"], reply.text
    assert "longer than 4096 characters" in reply.json()["error"]["message"]  # no component of it is looked at
