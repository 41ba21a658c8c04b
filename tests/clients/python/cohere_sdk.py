"""Cohere's Python client: rankings and embeddings by both versions of its API, and its errors."""

from __future__ import annotations

import cohere
from exchange import REAL, REAL_URL, check, expect, finish

DOCUMENTS = ["a car", "a dog", "a house"]
first = cohere.Client(base_url=REAL_URL, api_key="none", timeout=60)
second = cohere.ClientV2(base_url=REAL_URL, api_key="none", timeout=60)


@check
def rerank() -> None:
    answer = first.rerank(model=REAL, query="a dog", documents=DOCUMENTS, top_n=2, return_documents=True)
    expect(next(one.index for one in answer.results) == 1 and len(answer.results) == 2, answer)
    best = answer.results[0]
    expect(best.document and best.document.text == "a dog" and best.relevance_score > 0.99, best)
    objects = first.rerank(model=REAL, query="a dog", documents=[{"text": text} for text in DOCUMENTS])
    expect([one.index for one in objects.results][:2] == [one.index for one in answer.results], objects)


@check
def rerank_v2() -> None:
    answer = second.rerank(model=REAL, query="a dog", documents=DOCUMENTS)
    scores = [one.relevance_score for one in answer.results]
    expect(answer.results[0].index == 1 and scores == sorted(scores, reverse=True) and len(scores) == 3, answer)
    expect(answer.id and answer.meta and answer.meta.billed_units and answer.meta.billed_units.search_units, answer)


@check
def embed() -> None:
    plain = first.embed(model=REAL, texts=DOCUMENTS, input_type="search_document")
    expect(len(plain.embeddings) == 3 and plain.response_type == "embeddings_floats", plain)
    typed = second.embed(
        model=REAL, texts=DOCUMENTS, input_type="search_document", embedding_types=["float", "int8", "ubinary"]
    )
    found = typed.embeddings
    expect(found.float_ and found.float_[0] == plain.embeddings[0], typed)
    expect(found.int8 and max(map(abs, found.int8[0])) == 127, typed)
    expect(found.ubinary and found.float_ and len(found.ubinary[0]) * 8 >= len(found.float_[0]), typed)


@check
def errors() -> None:
    try:
        second.rerank(model=REAL, query="a dog", documents=[])
        raise AssertionError("nothing was ranked")
    except cohere.BadRequestError as error:
        expect("documents" in str(error.body), error.body)
    try:
        second.rerank(model="no-such-model", query="a dog", documents=DOCUMENTS)
        raise AssertionError("an unknown model was answered")
    except cohere.NotFoundError as error:
        expect("no-such-model" in str(error.body), error.body)


finish()
