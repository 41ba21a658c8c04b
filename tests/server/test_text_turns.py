"""Texts of all routes that take them, many and short or few and longer: no turn of the event loop does much of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cadence.engine.text.input_processor import InputProcessor
from cadence.entrypoints.server.routes import chat_batch
from cadence.text.service.loop_share import BEGUN_AT_ONCE, LEAST
from cadence.text.tokenizer import SHORT_TEXT, Tokenizer
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve

MANY = 80
SHORT = "a few short words "
LONGER = SHORT * 100  # short enough for the event loop, alone
ONE = {"role": "user", "content": LONGER}
CUT = {"truncate_prompt_tokens": 4, "max_tokens": 1}
NO_TEXTS = {  # routes that take a body, or none, without
    "/inference/v1/generate",
    "/v1/responses/{response_id}/cancel",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
}

BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": [SHORT] * MANY, "max_tokens": 1},
        {"prompt": LONGER, **CUT},
        {"prompt": SHORT, "max_tokens": 1, "bad_words": [f"word {number}" for number in range(MANY)]},
        {"prompt": SHORT, "max_tokens": 1, "bad_words": ["one", "two"]},
        {"prompt": [[300] * 8] * MANY, "max_tokens": 1, "echo": True},
    ],
    "/v1/completions/render": [{"prompt": [SHORT] * MANY}, {"prompt": [SHORT] * MANY, "return_token_offsets": True}],
    "/v1/chat/completions": [{"messages": [ONE], **CUT}],
    "/v1/chat/completions/render": [{"messages": [ONE], **CUT}],
    "/v1/chat/completions/batch": [{"messages": [[{"role": "user", "content": SHORT}]] * MANY, "max_tokens": 1}],
    "/v1/responses": [{"input": LONGER, "max_output_tokens": 16, "truncation": "auto"}],
    "/v1/messages": [{"messages": [{"role": "user", "content": SHORT}], "max_tokens": 1}],
    "/v1/messages/count_tokens": [{"messages": [ONE]}],
    "/invocations": [{"prompt": [SHORT] * MANY, "max_tokens": 1}],
    "/v1/embeddings": [{"input": [SHORT] * MANY}, {"input": LONGER, "truncate_prompt_tokens": 8}],
    "/pooling": [{"input": [SHORT] * MANY}],
    "/classify": [{"input": [SHORT] * MANY}],
    "/score": [{"text_1": SHORT, "text_2": [SHORT] * MANY}],
    "/v1/score": [{"text_1": [SHORT] * MANY, "text_2": [SHORT] * MANY}],
    "/rerank": [{"query": SHORT, "documents": [SHORT] * MANY}],
    "/v1/rerank": [{"query": SHORT, "documents": [SHORT] * MANY}],
    "/v2/rerank": [{"query": SHORT, "documents": [SHORT] * MANY}],
    "/v1/embed": [{"texts": [SHORT] * MANY}],
    "/v2/embed": [{"texts": [SHORT] * MANY}],
    "/generative_scoring": [{"query": SHORT, "items": [SHORT] * MANY, "label_token_ids": [5, 6]}],
    "/tokenize": [{"prompt": SHORT * 10}, {"messages": [{"role": "user", "content": SHORT}]}],
    "/detokenize": [{"tokens": [300] * 4000}],
}


class Turns:
    """What is tokenised on the event loop, by the number of its turn."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.characters: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()  # that are made ready for the engine
        self.jobs: Counter[int] = Counter()  # that conversations of batches become
        self.now = 0
        self.elsewhere = 0  # calls in other threads
        self.over = False

    def watch(self, app: RunningApp) -> None:
        self._loop_thread = threading.get_ident()
        self._tick(app)

    def _tick(self, app: RunningApp) -> None:
        self.now += 1
        if not self.over:
            app.loop.call_soon(self._tick, app)

    def note(self, characters: int) -> None:
        if self.is_elsewhere:
            self.elsewhere += 1
            return
        self.calls[self.now] += 1
        self.characters[self.now] += characters

    def count(self, counter: Counter[int]) -> None:
        if not self.is_elsewhere:
            counter[self.now] += 1

    @property
    def is_elsewhere(self) -> bool:
        return threading.get_ident() != self._loop_thread


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    noted = Turns()

    def noting(name: str) -> Any:
        work = getattr(Tokenizer, name)

        def call(self: Tokenizer, given: Any, *others: Any, **named: Any) -> Any:
            size = len(given) // 4 if name == "decode" else len(given) if isinstance(given, str) else 0
            noted.note(size)
            return work(self, given, *others, **named)

        return call

    def counting(work: Any, counter: Counter[int]) -> Any:
        return lambda *given, **named: (noted.count(counter), work(*given, **named))[1]

    for name in ("encode", "decode", "offsets", "render_chat"):
        monkeypatch.setattr(Tokenizer, name, noting(name))
    monkeypatch.setattr(InputProcessor, "process", counting(InputProcessor.process, noted.requests))
    monkeypatch.setattr(chat_batch, "prepare_job", counting(chat_batch.prepare_job, noted.jobs))
    yield noted
    noted.over = True


def test_no_turn_of_the_loop_has_much_text(serve: Serve, turns: Turns) -> None:
    app = serve(max_queued_requests=16 * 2 * MANY)  # none is refused, however slow the machine is
    app.do(turns.watch, app)
    with app.client() as client, ThreadPoolExecutor(16) as senders:
        taking = {path for path, item in client.get("/openapi.json").json()["paths"].items() if "post" in item}
        assert taking - NO_TEXTS == set(BODIES), "every route with texts has a body here"
        bodies = [(path, body) for path, some in BODIES.items() for body in some]
        posts = [senders.submit(client.post, path, json={"model": "fake", **body}) for path, body in bodies * 2]
        for (path, _), post in zip(bodies * 2, posts, strict=True):
            wanted = 400 if path == "/classify" else 200  # the model embeds: what is refused is not tokenised
            assert post.result().status_code == wanted, (path, post.result().text)
    assert turns.calls and turns.elsewhere, "both ways are taken"
    # A share begins anew in the middle of a turn: a turn may have the end of one and another.
    assert max(turns.calls.values()) <= 2 * SHORT_TEXT // LEAST
    assert max(turns.characters.values()) <= 2 * SHORT_TEXT
    assert sum(turns.requests.values()) > 4 * MANY, "most are made ready on the loop"
    assert max(turns.requests.values()) <= 2 * BEGUN_AT_ONCE < MANY, "those that waited, and those that find room then"
    assert not turns.jobs, "so many are made in a thread"
