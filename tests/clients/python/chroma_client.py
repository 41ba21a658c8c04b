"""Chroma: texts stored by the embeddings of the server, and found again."""

from __future__ import annotations

import chromadb
from chromadb.config import Settings
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction
from exchange import REAL, REAL_URL, check, expect, finish

TEXTS = ["a car in the street", "a dog in the park", "a house by the sea"]


@check
def round_trip() -> None:
    embed = OpenAIEmbeddingFunction(api_key="none", api_base=f"{REAL_URL}/v1", model_name=REAL)
    store = chromadb.EphemeralClient(settings=Settings(anonymized_telemetry=False))
    texts = store.create_collection("texts", embedding_function=embed)  # type: ignore[arg-type]
    texts.add(ids=["0", "1", "2"], documents=TEXTS)
    found = texts.query(query_texts=[TEXTS[1], TEXTS[2]], n_results=2)
    expect([ids[0] for ids in found["ids"]] == ["1", "2"], found)
    expect(all(row[0] < 1e-3 < row[1] for row in found["distances"] or ()), found["distances"])


finish()
