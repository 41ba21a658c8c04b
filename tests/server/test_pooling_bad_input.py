"""What nobody can embed, rank or classify: a 4xx that names the part, and nobody else is disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.protocol.pooling.answers import MAX_VALUES, check_values
from cadence.entrypoints.server.protocol.pooling.fields import MAX_TOKENS
from cadence.entrypoints.server.routes.pooling.prompts import add_tokens
from tests.hostile.bodies import join, pairs_of, with_field
from tests.hostile.seeds import SEEDS
from tests.hostile.values import fixed
from tests.server.helpers import FakeLLM, RunningApp, run_app
from tests.server.test_completions import Serve

JSON = {"content-type": "application/json"}
EMBED, RERANK, SCORE, LABELS = "/v1/embeddings", "/v1/rerank", "/score", "/generative_scoring"
DOCUMENTS = {"query": "a", "documents": ["b"]}
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    (EMBED, {}, "input", "either input or messages"),
    (EMBED, {"messages": None}, "messages", "either input or messages"),
    (EMBED, {"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input", "either"),
    (EMBED, {"input": ""}, "input", "is empty"),
    (EMBED, {"input": ["a", ""]}, "input[1]", "is empty"),
    (EMBED, {"input": []}, "input", "not empty"),
    (EMBED, {"input": [[]]}, "input[0]", "token ids"),
    (EMBED, {"input": {"a": 1}}, "input", "must be"),
    (EMBED, {"input": [[[5]]]}, "input[0]", "token ids"),
    (EMBED, {"input": [5, "a"]}, "input", "not all of it"),
    (EMBED, {"input": [True]}, "input[0]", "token ids"),
    (EMBED, {"input": [512]}, "input", "out of range"),
    (EMBED, {"input": [[5], [-1]]}, "input[1]", "out of range"),
    (EMBED, {"input": [10**30]}, "input", "out of range"),
    (EMBED, {"input": [[5] * 1025]}, "input[0]", "maximum context length is 1024"),
    (EMBED, {"input": "a fox " * 4000}, "input", "tokens"),
    (EMBED, {"input": [[5]] * 2049}, "input", "at most 2048"),
    (EMBED, {"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
    (EMBED, {"input": "a", "dimensions": 1.5}, "dimensions", "integer"),
    (EMBED, {"input": "a", "dimensions": 999}, "dimensions", "8 entries"),
    (EMBED, {"input": "a", "encoding_format": "hex"}, "encoding_format", "'float', 'base64'"),
    (EMBED, {"input": "", "encoding_format": "base64"}, "input", "is empty"),
    (EMBED, {"input": "a", "embed_dtype": "int4"}, "embed_dtype", "float32"),
    (EMBED, {"input": "a", "endianness": "middle"}, "endianness", "little"),
    (EMBED, {"input": ["a"] * 1000, "encoding_format": "bytes"}, "encoding_format", "bytes_only"),
    (EMBED, {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or at least 1"),
    (EMBED, {"input": "a", "truncate_prompt_tokens": 1025}, "truncate_prompt_tokens", "at most 1024"),
    (EMBED, {"input": "a", "truncation_side": "top"}, "truncation_side", "pattern"),
    (EMBED, {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"}, "chat_template", "refused"),
    (EMBED, {"messages": []}, "messages", "at least 1"),
    ("/classify", {"input": ["a"]}, None, "cannot classify"),
    (RERANK, {"documents": ["b"]}, "query", "required"),
    (RERANK, {"query": "a"}, "documents", "required"),
    (RERANK, {**DOCUMENTS, "query": ""}, "query", "is empty"),
    (RERANK, {**DOCUMENTS, "query": ["a"]}, "query", "must be a text"),
    (RERANK, {**DOCUMENTS, "documents": "b"}, "documents", "list of texts"),
    (RERANK, {**DOCUMENTS, "documents": []}, "documents", "at least one text"),
    (RERANK, {**DOCUMENTS, "documents": ["b", {"title": "c"}]}, "documents[1]", "must be a text"),
    (RERANK, {**DOCUMENTS, "documents": ["b", {"text": ""}]}, "documents[1]", "is empty"),
    (RERANK, {**DOCUMENTS, "documents": ["b"] * 2049}, "documents", "at most 2048"),
    (RERANK, {**DOCUMENTS, "top_n": -1}, "top_n", "greater than or equal to 0"),
    (RERANK, {**DOCUMENTS, "rank_fields": ["title"]}, "rank_fields", "by their text"),
    (RERANK, {**DOCUMENTS, "max_tokens_per_doc": 9}, "max_tokens_per_doc", "truncate_prompt_tokens"),
    (SCORE, {}, "text_1", "missing"),
    (SCORE, {"text_1": "a", "documents": "b"}, "documents", "two sides"),
    (SCORE, {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1", "as many on both sides"),
    (SCORE, {"text_1": ["a", "b"], "text_2": [3, "d"]}, "text_2[0]", "must be a text"),
    (LABELS, {"query": "a", "items": ["b"]}, "label_token_ids", "required"),
    (LABELS, {"query": "a", "items": ["b"], "label_token_ids": []}, "label_token_ids", "at least 1"),
    (LABELS, {"query": "a", "items": ["b"], "label_token_ids": [3, 512]}, "label_token_ids[1]", "vocabulary size 512"),
    (LABELS, {"query": {}, "items": ["b"], "label_token_ids": [3]}, "query", "token ids"),
    (LABELS, {"query": "a", "items": [4], "label_token_ids": [3]}, "items", "list of texts"),
    (LABELS, {"query": [4], "items": [[5], [600]], "label_token_ids": [3]}, "items[1]", "out of range"),
    (LABELS, {"query": "a", "items": ["b", "c " * 1024], "label_token_ids": [3]}, "items[1]", "maximum context length"),
]


@pytest.fixture(scope="module")
def app(fake_model: Path) -> Iterator[RunningApp]:
    with run_app(FakeLLM(fake_model)) as running:
        yield running


def test_every_mistake_is_named(app: RunningApp) -> None:
    with app.client() as client:
        for path, body, field, said in BAD:
            reply = client.post(path, json=body)
            shown = f"{path} {str(body)[:200]}: {reply.text}"
            assert reply.status_code == 400, shown
            error = reply.json()["error"]
            assert error["param"] == field and said in error["message"], shown
            assert len(reply.content) < 2000
    app.settle()
    assert app.state.admission.in_flight == 0


def test_requests_that_are_too_large() -> None:
    """All tokens of a request, and all values of an answer, before anything is computed."""
    assert add_tokens(MAX_TOKENS - 2, 2, "input[7]") == MAX_TOKENS
    check_values(MAX_VALUES, "input")
    with pytest.raises(InvalidRequestError, match=r"with input\[8\] the request has more than") as many:
        add_tokens(MAX_TOKENS - 2, 3, "input[8]")
    with pytest.raises(InvalidRequestError, match="send fewer texts") as large:
        check_values(MAX_VALUES + 1, "input")
    assert many.value.field == "input[8]" and large.value.field == "input"


def test_an_answer_has_so_many_values(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadence.entrypoints.server.protocol.pooling.answers.MAX_VALUES", 32)
    app = serve()
    with app.client() as client:
        for body in ({"input": [[5] * 4], "task": "token_embed"}, {"input": [[5]] * 4}):
            assert client.post("/pooling", json=body).status_code == 200
        for body in ({"input": [[5] * 5], "task": "token_embed"}, {"input": [[5]] * 5}):
            error = client.post("/pooling", json=body).json()["error"]
            assert error["param"] == "input" and "asks for 40 values" in error["message"]
    assert len(app.llm.started) == 5


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"input":["a"' + b',"a"' * 999_999 + b"]}", 400),  # a million tiny texts
        (b'{"input":' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (b'{"input":[NaN]}', 400),
        (b'{"input":"a","dimensions":Infinity}', 400),
        (b'{"input":"a","dimensions":1e400}', 400),
        (b'{"input":"\xff"}', 400),
        (b'{"input":"a"' + b" " * 17 * 2**20 + b"}", 413),
    ],
    ids=["a million", "nested", "nan", "infinity", "overflow", "no utf-8", "large"],
)
def test_bodies_that_are_too_much(app: RunningApp, content: bytes, status: int) -> None:
    with app.client() as client:
        reply = client.post(EMBED, content=content, headers=JSON)
        assert reply.status_code == status and len(reply.content) < 2000, reply.text[:300]
        assert client.get("/livez").status_code == 200
    assert not app.llm.started or app.state.admission.in_flight == 0


@pytest.mark.parametrize("path", [EMBED, RERANK, SCORE, LABELS, "/pooling"])
def test_hostile_values_in_every_field(app: RunningApp, path: str) -> None:
    """Of each kind of value a few, in each field of a good body."""
    some = [value for value in fixed() if len(value.text) < 200][::17]
    with app.client() as client:
        for body in SEEDS[path]:
            for field in body:
                for value in some:
                    content = join(with_field(pairs_of(body), field, value.text))
                    reply = client.post(path, content=content, headers=JSON)
                    assert reply.status_code in (200, 400, 404), (field, value.name, reply.text)
