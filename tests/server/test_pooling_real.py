"""The pooling routes over the real engine: a server process with a tiny random model that also writes text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest

from tests.server.fakes_chat import openai_client
from tests.server.helpers import ServerProcess

TEXTS = ["the quick brown fox", "jumps over", "the lazy dog, and the dog does not mind " * 8]


@pytest.fixture(scope="module")
def client(tiny_server: ServerProcess) -> openai.OpenAI:
    return openai_client(tiny_server)


def embed(client: openai.OpenAI, texts: list[str], **fields: Any) -> list[list[float]]:
    answer = client.embeddings.create(model="tiny", input=texts, **fields)
    assert [one.index for one in answer.data] == list(range(len(texts)))
    return [one.embedding for one in answer.data]


def test_the_same_bits_alone_together_and_beside_generation(client: openai.OpenAI) -> None:
    alone = [embed(client, [text], encoding_format="float")[0] for text in TEXTS]
    with ThreadPoolExecutor(2) as pool:
        written = pool.submit(
            client.completions.create, model="tiny", prompt=TEXTS[0], max_tokens=40, extra_body={"ignore_eos": True}
        )
        together = embed(client, TEXTS * 20, encoding_format="float")
        assert written.result().usage.completion_tokens == 40
    assert together == alone * 20
    assert [np.float32(one).tolist() for one in embed(client, TEXTS)] == alone  # in base64
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-5)


def test_scores_agree_with_embeddings(client: openai.OpenAI, tiny_server: ServerProcess) -> None:
    vectors = np.array(embed(client, TEXTS, encoding_format="float"))
    with tiny_server.client() as wire:
        scores = wire.post("/score", json={"text_1": TEXTS[0], "text_2": TEXTS}).json()["data"]
        ranked = wire.post("/v2/rerank", json={"query": TEXTS[0], "documents": TEXTS}).json()["results"]
        labels = {"query": "the", "items": [" dog", " fox"], "label_token_ids": [20, 21, 22]}
        parts = [
            [one["score"] for one in wire.post("/generative_scoring", json=body).json()["data"]]
            for body in ({**labels, "label_token_ids": [first, *{20, 21, 22} - {first}]} for first in (20, 21, 22))
        ]
    np.testing.assert_allclose([one["score"] for one in scores], vectors @ vectors[0], atol=1e-5)
    assert ranked[0]["index"] == 0 and ranked[0]["relevance_score"] == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(np.sum(parts, axis=0), 1, atol=1e-5)
