"""/v1/embed and /v2/embed over a fake engine, whose values are known sines of the tokens."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from cadence.config.pooling import PoolingConfig
from tests.server.fakes_chat import MODEL
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve
from tests.server.test_pooling_embeddings import post, sines

TEXTS = ["The quick brown fox", "it's used to foxes"]
ALL_TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve({"pooling": PoolingConfig(size=12, any_dimension=True)})


def embed(app: RunningApp, path: str = "/v2/embed", **body: Any) -> dict[str, Any]:
    return post(app, path, **{"model": MODEL, "texts": TEXTS, "input_type": "search_document"} | body)


def expected(app: RunningApp) -> list[np.ndarray]:
    return [sines(app.llm.tokenizer.encode(text), 12) for text in TEXTS]


def test_every_type_of_embedding(app: RunningApp) -> None:
    answer = embed(app, embedding_types=ALL_TYPES)
    found = answer["embeddings"]
    assert answer["response_type"] == "embeddings_by_type" and answer["texts"] == TEXTS
    assert list(found) == ALL_TYPES
    for number, vector in enumerate(expected(app)):
        np.testing.assert_allclose(found["float"][number], vector, atol=1e-6)
        decoded = np.frombuffer(base64.b64decode(found["base64"][number]), "<f4")
        assert decoded.tolist() == np.float32(found["float"][number]).tolist()
        bytes_np = np.array(found["int8"][number])
        assert np.abs(bytes_np).max() == 127 and found["uint8"][number] == (bytes_np + 128).tolist()
        np.testing.assert_allclose(bytes_np / 127 * np.abs(vector).max(), vector, atol=np.abs(vector).max() / 250)
        bits = "".join(f"{byte:08b}" for byte in found["ubinary"][number])
        assert len(bits) == 16 and bits[12:] == "0000"  # 12 entries
        assert [bit == "1" for bit in bits[:12]] == (vector > 0).tolist()
        assert found["binary"][number] == [byte - 128 for byte in found["ubinary"][number]]
    tokens = sum(len(app.llm.tokenizer.encode(text)) for text in TEXTS)
    assert answer["meta"]["billed_units"]["input_tokens"] == tokens and answer["meta"]["api_version"]["version"] == "2"


def test_the_first_version_answers_with_a_list(app: RunningApp) -> None:
    plain = embed(app, "/v1/embed")
    assert plain["response_type"] == "embeddings_floats"
    np.testing.assert_allclose(plain["embeddings"], expected(app), atol=1e-6)
    typed = embed(app, "/v1/embed", embedding_types=["ubinary"])
    assert typed["response_type"] == "embeddings_by_type" and list(typed["embeddings"]) == ["ubinary"]
    assert list(embed(app)["embeddings"]) == ["float"]


def test_parts_of_inputs_and_fewer_entries(app: RunningApp) -> None:
    parts = [{"type": "text", "text": "a fox"}, {"type": "text", "text": "a dog"}]
    answer = embed(app, texts=None, inputs=[{"content": parts}], output_dimension=4)
    (vector,) = answer["embeddings"]["float"]
    whole = sines(app.llm.tokenizer.encode("a fox\na dog"), 12, normalize=False)[:4]
    np.testing.assert_allclose(vector, whole / np.linalg.norm(whole), atol=1e-6)


def test_what_is_cut(app: RunningApp) -> None:
    """A text that is too long loses its end, unless the request says otherwise."""
    ids = app.llm.tokenizer.encode(TEXTS[0])
    for truncate, kept in (("END", ids[:3]), ("START", ids[-3:]), ("NONE", ids)):
        (vector,) = embed(app, texts=TEXTS[:1], truncate=truncate, max_tokens=3)["embeddings"]["float"]
        np.testing.assert_allclose(vector, sines(kept, 12), atol=1e-6)
    assert embed(app, texts=["a fox " * 4000])["meta"]["billed_units"]["input_tokens"] == 1024
    with app.client() as client:
        reply = client.post("/v2/embed", json={"texts": ["a fox " * 4000], "truncate": "NONE"})
    assert reply.status_code == 400 and "1024" in reply.json()["error"]["message"]


def test_the_type_of_texts_names_a_prompt(serve: Serve) -> None:
    prompts = (("query", "find: "), ("document", "of: "))
    app = serve({"pooling": PoolingConfig(size=12, prompts=prompts)})
    cases = {"search_query": ("find: ", None), "search_document": ("of: ", None), "clustering": ("", "input_type")}
    for kind, (prefix, ignored) in cases.items():
        with app.client() as client:
            reply = client.post("/v2/embed", json={"model": MODEL, "texts": ["a fox"], "input_type": kind})
        (vector,) = reply.json()["embeddings"]["float"]
        np.testing.assert_allclose(vector, sines(app.llm.tokenizer.encode(f"{prefix}a fox"), 12), atol=1e-6)
        assert reply.headers.get("x-cadence-ignored") == ignored


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": "a"}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": ["a"], "inputs": [{}]}, "texts"),
        ({"inputs": [{"content": [{"type": "image_url", "image_url": {}}]}]}, "inputs[0]"),
        ({"images": ["data:"]}, "images"),
        ({"texts": ["a"], "input_type": "image"}, "input_type"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types[0]"),
        ({"texts": ["a"], "output_dimension": 13}, "output_dimension"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
        ({"texts": ["a"], "max_tokens": 0}, "max_tokens"),
        ({"texts": ["a"] * 2049}, "texts"),
    ],
)
def test_bad_requests_name_the_field_that_was_sent(app: RunningApp, body: dict[str, Any], param: str) -> None:
    with app.client() as client:
        for path in ("/v1/embed", "/v2/embed"):
            reply = client.post(path, json=body)
            assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text
