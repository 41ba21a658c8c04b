"""The pooling routes over a tiny BERT that reads two texts and gives one score: what transformers gives for the pair,
types of its tokens included. It writes no text, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, processors

from tests.helpers.tiny_encoders import make_encoder, states_of
from tests.helpers.tiny_models import BOS, EOS, SPECIAL
from tests.server.helpers import ServerProcess

pytestmark = pytest.mark.warm

QUERY, DOCUMENTS = "the quick dog", ["foxes jump over", "12 monkeys", "a lazy fox " * 12]


def make_reranker(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tests.helpers.tiny_encoders.LABELS", 1)
    make_encoder("bert", directory, "texts")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    begin, end = SPECIAL[BOS], SPECIAL[EOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=f"{begin} $A {end} $B:1 {end}:1", special_tokens=[(begin, BOS), (end, EOS)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        yield make_reranker(tmp_path_factory.mktemp("reranker"), patch)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    with ServerProcess(model, "--dtype", "float32", "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def score(model: Path) -> Callable[..., float]:
    """The score of one text or two by transformers, before the activation; `limit` cuts them."""
    tokenizer, compute = Tokenizer.from_file(str(model / "tokenizer.json")), states_of(model, "texts")

    def scored(*texts: str, limit: int = 256) -> float:
        tokenizer.enable_truncation(limit)
        encoding = tokenizer.encode(*texts)
        return float(compute(encoding.ids, token_type_ids=torch.tensor([encoding.type_ids]))[0])

    return scored


def post(server: ServerProcess, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    with server.client() as client:
        reply = client.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def sigmoid(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))


def test_scores_of_pairs(server: ServerProcess, score: Callable[..., float]) -> None:
    raw = [score(QUERY, text) for text in DOCUMENTS]
    found = post(server, "/score", text_1=QUERY, text_2=DOCUMENTS, use_activation=False)["data"]
    np.testing.assert_allclose([one["score"] for one in found], raw, atol=1e-5)
    ranked = post(server, "/v1/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    assert [one["index"] for one in ranked] == sorted(range(3), key=lambda number: -raw[number])
    np.testing.assert_allclose(
        [one["relevance_score"] for one in ranked], [sigmoid(raw[one["index"]]) for one in ranked], atol=1e-5
    )
    (cut,) = post(server, "/score", text_1=QUERY, text_2=DOCUMENTS[2], truncate_prompt_tokens=16, use_activation=False)[
        "data"
    ]
    assert cut["score"] == pytest.approx(score(QUERY, DOCUMENTS[2], limit=16), abs=1e-5)


def test_classes_of_texts(server: ServerProcess, score: Callable[..., float]) -> None:
    found = post(server, "/classify", input=DOCUMENTS)["data"]
    np.testing.assert_allclose(
        [one["probs"][0] for one in found], [sigmoid(score(text)) for text in DOCUMENTS], atol=1e-5
    )
    assert {one["num_classes"] for one in found} == {1} and found[0]["label"] == "LABEL_0"


def test_what_it_cannot_do(server: ServerProcess) -> None:
    embed = post(server, "/v1/embeddings", 400, input="a")["error"]
    assert "cannot embed: it can classify" in embed["message"] and embed["param"] is None
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/generative_scoring", {"query": "a", "items": ["b"], "label_token_ids": [5]}),
    ):
        assert "writes no text" in post(server, path, 400, **body)["error"]["message"]
    with server.client() as client:
        assert client.get("/health").status_code == 200 and client.get("/v1/models").status_code == 200
