"""/score, /rerank and /generative_scoring over a fake engine, whose values are known sines of the tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from cadence.config.pooling import PoolingConfig
from cadence.core.outputs import Logprob
from cadence.entrypoints.server.routes.pooling.generative_scoring import label_score
from cadence.text.text_frame import TextFrame
from cadence.text.tokenizer import SpecialTokens, Tokenizer
from tests.helpers.tiny_tokenizers import byte_level, save
from tests.server.fake_llm import POOLING, FakeLLM, save_fake_model
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve
from tests.server.test_pooling_embeddings import post, sines

QUERY, DOCUMENTS = "the quick dog", ["foxes jump over", "12 monkeys", "café in a façade"]
SCORES = PoolingConfig(generates=False, tasks=("classify", "score"), labels=("relevance",), score_activation="none")


def bert_like(pair: str = "<s> $A </s> $B:1 </s>:1") -> Any:
    """<s> one </s> for a text, <s> one </s> two </s> for two, with types."""
    tokenizer = byte_level()
    special = [("<s>", 1), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair=pair, special_tokens=special)
    return tokenizer


@pytest.fixture
def reranker(serve: Serve, tmp_path: Path) -> RunningApp:
    directory = save_fake_model(tmp_path)
    save(bert_like(), directory)
    return serve(FakeLLM(directory, pooling=SCORES))


def pair_score(ids: list[int]) -> float:
    return float(sines(ids, 1, normalize=False)[0])


def test_a_template_of_the_model_for_pairs_is_used(serve: Serve, tmp_path: Path) -> None:
    """It names both roles; one for chats alone does not, and pairs are joined by special tokens."""
    own = (
        "{{ instruct or 'Judge.' }}{% for message in messages %}"
        "{% if message.role == 'query' %}<q>{{ message.content }}{% endif %}"
        "{% if message['role'] == \"document\" %}<d>{{ message.content }}{% endif %}{% endfor %}<s>yes?"
    )
    chats = "{% for message in messages %}{{ message.role }}{{ message.content }}{% endfor %}"
    for template, joined in ((own, False), (chats, True)):
        directory = save_fake_model(tmp_path / str(joined))
        save(bert_like(), directory, chat_template=template)
        app = serve(FakeLLM(directory, pooling=SCORES), trust_request_chat_template=True)
        encode = app.llm.tokenizer.backend.encode
        ids = encode(QUERY, DOCUMENTS[0]).ids
        if not joined:
            ids = encode(f"Judge.<q>{QUERY}<d>{DOCUMENTS[0]}<s>yes?", add_special_tokens=False).ids
        answer = post(app, "/score", text_1=QUERY, text_2=DOCUMENTS[0])
        assert answer["data"][0]["score"] == pytest.approx(pair_score(ids), abs=1e-6)
        best = post(app, "/rerank", query=QUERY, documents=DOCUMENTS[:1], chat_template_kwargs={"instruct": "Rank."})
        if not joined:
            ids = encode(f"Rank.<q>{QUERY}<d>{DOCUMENTS[0]}<s>yes?", add_special_tokens=False).ids
        assert best["results"][0]["relevance_score"] == pytest.approx(pair_score(ids), abs=1e-6)
        given = post(app, "/score", text_1=QUERY, text_2=DOCUMENTS[0], chat_template=chats)
        ids = encode(f"query{QUERY}document{DOCUMENTS[0]}", add_special_tokens=False).ids
        assert given["data"][0]["score"] == pytest.approx(pair_score(ids), abs=1e-6)


def test_a_template_of_the_server_writes_pairs(serve: Serve, tmp_path: Path) -> None:
    directory = save_fake_model(tmp_path)
    save(bert_like(), directory)
    template = "{{ messages[0].content }} ~ {{ messages[1].content }}"
    app = serve(FakeLLM(directory, pooling=SCORES), chat_template=template)
    ids = app.llm.tokenizer.backend.encode(f"{QUERY} ~ {DOCUMENTS[1]}", add_special_tokens=False).ids
    answer = post(app, "/rerank", query=QUERY, documents=[DOCUMENTS[1]])
    assert answer["results"][0]["relevance_score"] == pytest.approx(pair_score(ids), abs=1e-6)
    with app.client() as client:
        for own in ("{{ 1 }}", "{% broken"):
            reply = client.post("/score", json={"text_1": QUERY, "text_2": "a", "chat_template": own})
            assert reply.status_code == 400 and "--trust-request-chat-template" in reply.json()["error"]["message"]


def test_a_template_for_a_model_that_reads_each_text_by_itself(serve: Serve) -> None:
    with serve(trust_request_chat_template=True).client() as client:
        reply = client.post("/score", json={"text_1": QUERY, "text_2": "a", "chat_template": "{{ 1 }}"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "chat_template"


def test_a_model_that_reads_both_texts(reranker: RunningApp) -> None:
    """As transformers' tokenizers write a pair."""
    expected = [pair_score(bert_like().encode(QUERY, text).ids) for text in DOCUMENTS]
    for body in (
        {"text_1": QUERY, "text_2": DOCUMENTS},
        {"queries": [QUERY] * 3, "documents": [{"text": text} for text in DOCUMENTS]},
        {"queries": QUERY, "items": DOCUMENTS},
        {"data_1": [QUERY], "data_2": DOCUMENTS},
    ):
        answer = post(reranker, "/v1/score", **body)
        np.testing.assert_allclose([one["score"] for one in answer["data"]], expected, atol=1e-6)
    assert answer["data"][1]["index"] == 1 and answer["data"][1]["object"] == "score"
    assert answer["usage"]["prompt_tokens"] == sum(len(bert_like().encode(QUERY, text).ids) for text in DOCUMENTS)


def test_a_pair_is_cut_at_its_longer_text(reranker: RunningApp) -> None:
    tokenizer = bert_like()
    long = "a sequence of tokens " * 20
    for limit, pair in ((12, (QUERY, long)), (9, (long, QUERY)), (8, (long, long))):
        tokenizer.enable_truncation(limit, strategy="longest_first")
        expected = pair_score(tokenizer.encode(*pair).ids)
        (found,) = post(reranker, "/score", text_1=pair[0], text_2=pair[1], truncate_prompt_tokens=limit)["data"]
        assert found["score"] == pytest.approx(expected, abs=1e-6), limit


def test_frames_of_texts() -> None:
    """What tokenizers write, made again from the tokens of each text alone."""
    backend = bert_like()
    tokenizer = Tokenizer(bert_like(), SpecialTokens())
    first, second = (backend.encode(text, add_special_tokens=False).ids for text in (QUERY, DOCUMENTS[0]))
    one, two = TextFrame.of_one(tokenizer), TextFrame.of_two(tokenizer)
    whole = backend.encode(QUERY, DOCUMENTS[0])
    assert one.joined(first) == backend.encode(QUERY).ids and two.joined(first, second) == whole.ids
    assert two.second_from(first) == whole.type_ids.index(1)
    untyped = TextFrame.of_two(Tokenizer(bert_like("<s> $A </s> </s> $B </s>"), SpecialTokens()))
    assert untyped.second_from(first) == 0 and untyped.between == (2, 2)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_the_best_documents_first(reranker: RunningApp, path: str) -> None:
    scores = [pair_score(bert_like().encode(QUERY, text).ids) for text in DOCUMENTS]
    order = sorted(range(3), key=lambda number: -scores[number])
    answer = post(reranker, path, query=QUERY, documents=[DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]], top_n=2)
    assert [one["index"] for one in answer["results"]] == order[:2] and answer["id"].startswith("rerank-")
    assert [one["document"]["text"] for one in answer["results"]] == [DOCUMENTS[number] for number in order[:2]]
    assert answer["results"][0]["relevance_score"] == pytest.approx(scores[order[0]], abs=1e-6)
    assert answer["usage"]["total_tokens"] == answer["meta"]["tokens"]["input_tokens"] > 0
    bare = post(reranker, path, query=QUERY, documents=DOCUMENTS, return_documents=False)
    assert [one["index"] for one in bare["results"]] == order and "document" not in bare["results"][0]


def test_embeddings_are_compared(serve: Serve) -> None:
    app = serve()
    vectors = [sines(app.llm.tokenizer.encode(text)) for text in (QUERY, *DOCUMENTS)]
    expected = [float(vectors[0] @ vector) for vector in vectors[1:]]
    answer = post(app, "/score", text_1=QUERY, text_2=DOCUMENTS)
    np.testing.assert_allclose([one["score"] for one in answer["data"]], expected, atol=1e-5)
    assert len(app.llm.started) == 4  # the query once
    ranked = post(app, "/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    assert [one["index"] for one in ranked] == sorted(range(3), key=lambda number: -expected[number])


def test_embeddings_of_tokens_are_compared(serve: Serve) -> None:
    """Each token of the query with the document's most similar one."""
    app = serve({"pooling": replace(POOLING, tasks=("token_embed", "embed"))})
    query, *documents = [
        np.stack([sines([token]) for token in app.llm.tokenizer.encode(t)]) for t in (QUERY, *DOCUMENTS)
    ]
    expected = [float((query @ document.T).max(axis=1).sum()) for document in documents]
    answer = post(app, "/score", text_1=QUERY, text_2=DOCUMENTS)
    np.testing.assert_allclose([one["score"] for one in answer["data"]], expected, rtol=1e-5)
    ranked = post(app, "/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    assert [one["index"] for one in ranked] == sorted(range(3), key=lambda number: -expected[number])


def test_labels_that_may_come_next(serve: Serve) -> None:
    """The fake's first token is the prompt's own, with a logprob of -0.5; those after it have 1 less each."""
    app = serve()
    body = {"query": [10, 11], "items": [[12], [13, 14]], "label_token_ids": [11, 10]}
    answer = post(app, "/generative_scoring", **body)
    assert [one["index"] for one in answer["data"]] == [0, 1] and answer["object"] == "list"
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert all(0 < one["score"] < 1 for one in answer["data"])
    assert app.llm.started[0].startswith(answer["id"])
    texts = post(app, "/generative_scoring", query="a fox", items=["!", "?"], label_token_ids=[10], item_first=True)
    assert [one["score"] for one in texts["data"]] == [1.0, 1.0]


def test_scores_of_labels() -> None:
    position = {3: Logprob(math.log(0.5)), 4: Logprob(math.log(0.125)), 5: Logprob(-math.inf)}
    assert label_score(position, [3, 4], True) == pytest.approx(0.8)
    assert label_score(position, [4, 3, 3], True) == pytest.approx(0.2)
    assert label_score(position, [4, 3], False) == pytest.approx(0.125)
    assert label_score(position, [5], True) == label_score(position, [5, 4], False) == 0.0
