"""/v1/embeddings, /pooling and /classify over a fake engine, whose values are known sines of the tokens."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

from cadence.config.pooling import PoolingConfig
from cadence.entrypoints.server.protocol.pooling.binary import to_bytes
from cadence.entrypoints.server.routes.pooling.in_flight import IN_FLIGHT
from cadence.vllm.serial import (
    EMBED_DTYPES,
    ENDIANNESS,
    MetadataItem,
    build_metadata_items,
    decode_pooling_output,
    tensor2binary,
)
from tests.server.fake_llm import FakeLLM
from tests.server.fakes_chat import MODEL, openai_client
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve
from tests.server.test_limits_admission import wait_for

TEXTS = ["The quick brown fox", "it's used to foxes", "300 tokens"]
CLASSES = PoolingConfig(
    generates=False, tasks=("classify", "token_classify"), labels=("bad", "good", "fair"), activation="softmax"
)


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve()


def post(app: RunningApp, path: str, **body: Any) -> dict[str, Any]:
    with app.client() as client:
        reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def sines(ids: list[int], entries: int = 8, normalize: bool = True) -> np.ndarray:
    values = np.sin(np.outer(ids, np.arange(1, entries + 1))).astype(np.float32).mean(axis=0)
    return values / np.linalg.norm(values) if normalize else values


def test_texts_and_ids_in_both_encodings(app: RunningApp) -> None:
    """The official client asks for base64 unless told otherwise."""
    client, tokenizer = openai_client(app), app.llm.tokenizer
    ids = [tokenizer.encode(text) for text in TEXTS]
    plain = client.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
    coded = client.embeddings.create(model=MODEL, input=ids)  # type: ignore[arg-type]
    single = client.embeddings.create(model=MODEL, input=ids[1])
    assert [one.index for one in plain.data] == [0, 1, 2] and plain.data[0].object == "embedding"
    for number, row in enumerate(ids):
        np.testing.assert_allclose(plain.data[number].embedding, sines(row), atol=1e-6)
        assert np.float32(plain.data[number].embedding).tolist() == np.float32(coded.data[number].embedding).tolist()
    assert np.float32(single.data[0].embedding).tolist() == np.float32(coded.data[1].embedding).tolist()
    assert plain.usage.prompt_tokens == plain.usage.total_tokens == sum(map(len, ids))
    assert plain.object == "list" and plain.model == MODEL


def test_base64_is_little_endian_float32(app: RunningApp) -> None:
    answer = post(app, "/v1/embeddings", input=[10, 11], encoding_format="base64", normalize=False, user="me")
    values = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(values, sines([10, 11], normalize=False), atol=1e-6)


def test_dimensions_and_cuts(app: RunningApp) -> None:
    ids = app.llm.tokenizer.encode(TEXTS[0])
    short = post(app, "/v1/embeddings", input=TEXTS[0], dimensions=4)["data"][0]["embedding"]
    expected = sines(ids, normalize=False)[:4]
    np.testing.assert_allclose(short, expected / np.linalg.norm(expected), atol=1e-6)
    for side, kept in (("left", ids[-3:]), ("right", ids[:3])):
        cut = post(app, "/v1/embeddings", input=TEXTS[0], truncate_prompt_tokens=3, truncation_side=side)
        np.testing.assert_allclose(cut["data"][0]["embedding"], sines(kept), atol=1e-6)
        assert cut["usage"]["prompt_tokens"] == 3
    whole = post(app, "/v1/embeddings", input="a fox " * 4000, truncate_prompt_tokens=-1)
    assert whole["usage"]["prompt_tokens"] == 1024  # as many as the model takes


def test_prompts_of_the_models_files(serve: Serve) -> None:
    """Before texts, and before nothing else."""
    prompts = (("query", "find: "), ("text", "of: "))
    app = serve({"pooling": PoolingConfig(size=8, prompts=prompts, default_prompt="of: ")})
    encode = app.llm.tokenizer.encode
    for name, prefix in ((None, "of: "), ("query", "find: ")):
        (found,) = post(app, "/v1/embeddings", input="a fox", prompt_name=name)["data"]
        np.testing.assert_allclose(found["embedding"], sines(encode(prefix + "a fox")), atol=1e-6)
    (ids,) = post(app, "/v1/embeddings", input=[10, 11])["data"]
    np.testing.assert_allclose(ids["embedding"], sines([10, 11]), atol=1e-6)
    (pair,) = post(app, "/score", text_1="a fox", text_2="a dog")["data"]
    assert pair["score"] == pytest.approx(float(sines(encode("of: a fox")) @ sines(encode("of: a dog"))), abs=1e-5)
    with app.client() as client:
        error = client.post("/v1/embeddings", json={"input": "a", "prompt_name": "none"}).json()["error"]
    assert error["param"] == "prompt_name" and "it has query, text" in error["message"]


def test_texts_in_lower_case(serve: Serve) -> None:
    """As a model's files may ask: the prompt before a text, too; ids stay as they are."""
    app = serve({"pooling": PoolingConfig(size=8, default_prompt="Of: ", lower_case=True)})
    (found,) = post(app, "/v1/embeddings", input="A FOX, Größe")["data"]
    expected = sines(app.llm.tokenizer.encode("of: a fox, größe"))
    np.testing.assert_allclose(found["embedding"], expected, atol=1e-6)


class AbortingLLM(FakeLLM):
    """Whose owner aborts all that runs."""

    def _check_alive(self) -> None:
        for request_id in self._running.keys() - self._last_words.keys():
            self._last_words[request_id] = self._end(request_id)


def test_an_aborted_request_may_be_sent_again(serve: Serve, fake_model: Path) -> None:
    """As of text: it is no error of the server's."""
    with serve(AbortingLLM(fake_model)).client() as client:
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/score", {"text_1": "a", "text_2": "b"})):
            reply = client.post(path, json=body)
            assert reply.status_code == 503 and "aborted by the server" in reply.json()["error"]["message"]


def test_a_conversation(app: RunningApp) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = post(app, "/v1/embeddings", messages=messages, model=MODEL)
    tokens = post(app, "/tokenize", messages=messages, add_generation_prompt=False)["tokens"]
    np.testing.assert_allclose(answer["data"][0]["embedding"], sines(tokens), atol=1e-6)


def test_values_of_every_token(app: RunningApp) -> None:
    answer = post(app, "/pooling", input=[[10, 11], [12]], task="token_embed", normalize=False)
    assert [np.shape(one["data"]) for one in answer["data"]] == [(2, 8), (1, 8)]
    np.testing.assert_allclose(answer["data"][1]["data"][0], sines([12], normalize=False), atol=1e-6)
    coded = post(app, "/pooling", input=[10, 11], task="token_embed", normalize=False, encoding_format="base64")
    values = np.frombuffer(base64.b64decode(coded["data"][0]["data"]), dtype="<f4").reshape(2, 8)
    assert values.tolist() == np.float32(answer["data"][0]["data"]).tolist()
    assert answer["data"][0]["object"] == "pooling" and answer["id"].startswith("pool-")
    assert np.shape(post(app, "/pooling", input="a")["data"][0]["data"]) == (8,)  # what the model was made for


def test_classes(serve: Serve) -> None:
    app = serve({"pooling": CLASSES})
    answer = post(app, "/classify", input=TEXTS)
    for text, one in zip(TEXTS, answer["data"], strict=True):
        scores = sines(app.llm.tokenizer.encode(text), 3, normalize=False)
        expected = np.exp(scores) / np.exp(scores).sum()
        np.testing.assert_allclose(one["probs"], expected, atol=1e-6)
        assert one["label"] == CLASSES.labels[int(expected.argmax())] and one["num_classes"] == 3
    (raw,) = post(app, "/classify", input=[10, 11], use_activation=False)["data"]
    np.testing.assert_allclose(raw["probs"], sines([10, 11], 3, normalize=False), atol=1e-6)
    assert np.shape(post(app, "/pooling", input=[1, 2, 3], task="token_classify")["data"][0]["data"]) == (3, 3)


def test_many_texts_run_some_at_a_time(serve: Serve) -> None:
    app = serve({"delay": 0.01})
    count = 2 * IN_FLIGHT + 7
    answer = post(app, "/v1/embeddings", input=[[3 + number % 200, 4] for number in range(count)])
    assert [one["index"] for one in answer["data"]] == list(range(count))
    np.testing.assert_allclose(answer["data"][-1]["embedding"], sines([3 + (count - 1) % 200, 4]), atol=1e-6)
    assert 1 < app.llm.most_running <= IN_FLIGHT and not app.llm.aborted


def test_a_client_that_leaves_ends_all(serve: Serve) -> None:
    app = serve({"delay": 60.0})
    content = b'{"input": ["a", "b", "c"]}'
    head = "POST /v1/embeddings HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", app.port)) as wire:
        wire.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        wait_for(lambda: len(app.llm.started) == 3)
    wait_for(lambda: len(app.llm.aborted) == 3)
    app.settle()
    assert len(app.llm.aborted) == 3 and app.state.admission.aborted == 1


def test_one_bad_text_ends_the_others(serve: Serve) -> None:
    app = serve({"delay": 60.0})
    with app.client() as client:
        reply = client.post("/v1/embeddings", json={"input": [[5], [6], [512]]})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "input[2]"
    assert len(app.llm.aborted) == 2 and app.state.admission.failed == 1


def test_a_request_may_take_only_so_long(serve: Serve) -> None:
    with serve({"delay": 60.0}, request_deadline=0.05).client() as client:
        reply = client.post("/v1/embeddings", json={"input": ["a", "b"]})
    assert reply.status_code == 408 and "limit of 0.05 s" in reply.json()["error"]["message"]


def test_what_the_model_cannot_do_is_said(serve: Serve) -> None:
    embeds, classifies = serve(), serve({"pooling": CLASSES})
    cases = [
        (embeds, "/classify", {"input": "a"}, None, "this model cannot classify: it can embed, token_embed"),
        (embeds, "/pooling", {"input": "a", "task": "token_classify"}, "task", "cannot token_classify"),
        (embeds, "/pooling", {"input": "a", "task": "dance"}, "task", "task must be one of"),
        (embeds, "/v1/embeddings", {"input": "a", "dimensions": 5}, "dimensions", "8 entries"),
        (classifies, "/v1/embeddings", {"input": "a"}, None, "cannot embed: it can classify"),
        (classifies, "/rerank", {"query": "a", "documents": ["b"]}, None, "cannot score"),
    ]
    for app, path, body, field, said in cases:
        with app.client() as client:
            error = client.post(path, json=body).json()["error"]
        assert error["param"] == field and said in error["message"] and error["code"] == 400, error


def test_counted(app: RunningApp) -> None:
    post(app, "/v1/embeddings", input=[[5, 6], [7]])
    with app.client() as client:
        lines = client.get("/metrics").text.splitlines()
    values = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    found = {name.partition("{")[0]: float(value) for name, _, value in values}
    assert found["cadence:pooling_requests_total"] == 2 and found["cadence:pooling_prompt_tokens_total"] == 3
    assert found["vllm:prompt_tokens_total"] == 3 and found["vllm:generation_tokens_total"] == 0
    assert "vllm:pooling_requests_total" not in found
    assert found["cadence:http_requests_finished_total"] == 1


def test_an_error_of_the_official_client(app: RunningApp) -> None:
    with pytest.raises(openai.BadRequestError, match="at least one character"):
        openai_client(app).embeddings.create(model=MODEL, input=["a", ""])
    with pytest.raises(openai.NotFoundError):
        openai_client(app).embeddings.create(model="another", input="a")


@pytest.mark.parametrize("endianness", ENDIANNESS)
@pytest.mark.parametrize("dtype", EMBED_DTYPES)
def test_values_as_bytes(app: RunningApp, dtype: str, endianness: str) -> None:
    """As programs for vLLM read them."""
    given = {"input": [[10, 11], [12]], "encoding_format": "bytes", "embed_dtype": dtype, "endianness": endianness}
    expected = torch.from_numpy(np.stack([sines([10, 11]), sines([12])])).to(EMBED_DTYPES[dtype].torch_dtype).float()
    with app.client() as client:
        answer = client.post("/v1/embeddings", json=given)
        bare = client.post("/v1/embeddings", json={**given, "encoding_format": "bytes_only"})
    said = json.loads(answer.headers["metadata"])
    found = decode_pooling_output([MetadataItem(**item) for item in said["data"]], answer.content)
    assert said["usage"]["prompt_tokens"] == 3 and said["model"] == MODEL
    assert bare.content == answer.content and "metadata" not in bare.headers
    items = build_metadata_items(dtype, endianness, (expected.shape[1],), 2)
    coded = post(app, "/v1/embeddings", **{**given, "encoding_format": "base64"})["data"]
    for place, each in enumerate(decode_pooling_output(items, bare.content)):
        assert torch.equal(each.float(), found[place].float())
        torch.testing.assert_close(each.float(), expected[place], atol=1e-6, rtol=0.26 if "fp8" in dtype else 0.01)
        assert base64.b64decode(coded[place]["embedding"]) == tensor2binary(each, dtype, endianness)


@pytest.mark.parametrize("dtype", EMBED_DTYPES)
def test_numbers_are_rounded_as_torch_rounds_them(dtype: str) -> None:
    generator = np.random.default_rng(2)
    values = generator.normal(size=4000).astype(np.float32) * np.float32(2.0) ** generator.integers(-20, 8, 4000)
    halves = np.arange(-64, 64, dtype=np.float32) / 1024
    values = np.concatenate([values, halves, halves * 512, np.float32([0.0, -0.0, 448, 1e-9, -1e-9])]).astype(
        np.float32
    )
    expected = tensor2binary(torch.from_numpy(values), dtype, "big")
    assert to_bytes(values, dtype, "big") == expected
