"""Values in place of text, as programs for vLLM ask `LLM` and its engines for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tokenizers import processors

from cadence import LLM, PoolingParams, SamplingParams
from cadence.core.errors import CadenceError, InvalidRequestError
from cadence.core.pooled.pooled_outputs import EmbeddingRequestOutput, ScoringRequestOutput
from cadence.engine.text.prompts import ParsedPrompt
from cadence.entrypoints.async_engine import AsyncLLMEngine
from cadence.entrypoints.engine_args import AsyncEngineArgs
from cadence.entrypoints.offline_pooling import PoolingCall
from cadence.entrypoints.offline_scoring import OfflineScoring, ScoredPairs
from cadence.text.load import load_tokenizer
from tests.helpers.tiny_models import make_tiny, randomise
from tests.helpers.tiny_scorers import add_modules, make_headed
from tests.helpers.tiny_tokenizers import CORPUS, save, wordpiece

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256}
TEXTS = ["the quick brown fox", "12 monkeys", "a sequence of words"]


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> str:
    return str(tiny_model("llama"))


@pytest.fixture(scope="module")
def llm(directory: str) -> LLM:
    return LLM(directory, **OPTIONS)


def embeddings(llm: LLM, texts: Any, **options: Any) -> np.ndarray:
    return np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False, **options)], np.float32)


def test_embed_encode_and_score_agree(llm: LLM) -> None:
    outputs = llm.embed(TEXTS, use_tqdm=False)
    assert all(isinstance(output, EmbeddingRequestOutput) and output.finished for output in outputs)
    assert [output.prompt_token_ids for output in outputs] == [llm.get_tokenizer().encode(text) for text in TEXTS]
    vectors = embeddings(llm, TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    encoded = [output.outputs.data for output in llm.encode(TEXTS, pooling_task="embed", use_tqdm=False)]
    assert torch.equal(torch.stack(encoded), torch.from_numpy(vectors))
    one_with_each = llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)
    assert all(isinstance(output, ScoringRequestOutput) for output in one_with_each)
    expected = (vectors[1:] @ vectors[0]).tolist()
    assert [output.outputs.score for output in one_with_each] == pytest.approx(expected, abs=1e-5)
    by_place = llm.score(TEXTS, TEXTS[::-1], use_tqdm=False)
    assert [output.outputs.score for output in by_place] == pytest.approx((vectors * vectors[::-1]).sum(1), abs=1e-5)


def test_parameters_are_for_all_prompts_or_one_each(llm: LLM) -> None:
    raw = embeddings(llm, TEXTS, pooling_params=PoolingParams(normalize=False))
    mixed = embeddings(llm, TEXTS, pooling_params=[PoolingParams(normalize=flag) for flag in (False, True, False)])
    assert np.array_equal(mixed[[0, 2]], raw[[0, 2]]) and not np.array_equal(mixed[1], raw[1])
    ids = {"prompt_token_ids": llm.get_tokenizer().encode(TEXTS[1])}
    assert np.array_equal(embeddings(llm, [TEXTS[0], ids], pooling_params=PoolingParams(normalize=False)), raw[:2])
    by_token = llm.encode(TEXTS[0], pooling_task="token_embed", use_tqdm=False)[0]
    assert by_token.outputs.data.shape == (len(by_token.prompt_token_ids), raw.shape[1])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda llm: llm.classify(TEXTS), "this model cannot classify: it can embed, token_embed"),
        (lambda llm: llm.reward(TEXTS), "this model cannot token_classify"),
        (lambda llm: llm.encode(TEXTS, pooling_task="rank"), "task must be one of embed"),
        (lambda llm: llm.embed(TEXTS, pooling_params=PoolingParams(task="classify")), "ask to classify"),
        (lambda llm: llm.embed(TEXTS, pooling_params=[PoolingParams()]), "1 pooling_params for 3 prompts"),
        (lambda llm: llm.embed(TEXTS, pooling_params=SamplingParams()), "must be PoolingParams, not SamplingParams"),
        (lambda llm: llm.embed([*TEXTS, [7, 10**6]]), "token 1000000 at position 1"),
        (lambda llm: llm.embed([*TEXTS, {"prompt_token_ids": []}]), "the prompt is empty"),
        (lambda llm: llm.embed([*TEXTS, [7] * 300]), "maximum context length is 256"),
        (lambda llm: llm.embed(TEXTS, truncate_prompt_tokens=300), "truncate_prompt_tokens is 300"),
        (lambda llm: llm.embed(TEXTS, truncate_prompt_tokens=0), "truncate_prompt_tokens is 0"),
        (lambda llm: llm.embed(TEXTS, pooling_params=PoolingParams(dimensions=7)), "entries"),
        (lambda llm: llm.embed(TEXTS, spam=1), "LLM has no option 'spam'"),
        (lambda llm: llm.score(TEXTS[:2], TEXTS), "data_1 holds 2 texts and data_2 3"),
        (lambda llm: llm.score([], TEXTS), "data_1 must hold"),
        (lambda llm: llm.generate(TEXTS, PoolingParams()), "must be SamplingParams"),
    ],
)
def test_a_call_that_cannot_be_served_leaves_nothing(llm: LLM, call: Callable[[LLM], Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        call(llm)
    assert llm.llm_engine.get_num_unfinished_requests() == 0


def test_a_text_is_cut_and_its_special_tokens_are_not(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(TEXTS[0])
    cut = llm.embed([TEXTS[0], {"prompt_token_ids": ids}, "12"], truncate_prompt_tokens=4, use_tqdm=False)
    assert [output.prompt_token_ids for output in cut[:2]] == [ids[:4], ids[:4]]
    assert cut[2].prompt_token_ids == llm.get_tokenizer().encode("12")
    assert len(llm.embed("word " * 400, truncate_prompt_tokens=-1, use_tqdm=False)[0].prompt_token_ids) == 256


def pair_tokenizer(directory: Path) -> Path:
    """As BERT's: [CLS] a [SEP] b [SEP], and types of 0 and 1."""
    tokenizer = wordpiece()
    begin, end = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s>:0 $A:0 </s>:0 $B:1 </s>:1", special_tokens=[("<s>", begin), ("</s>", end)]
    )
    return save(tokenizer, directory)


class _PoolingThatListens:
    """In the place of `OfflinePooling`: keeps the prompts that come."""

    max_model_len = 24
    config = type("config", (), {"tasks": ("classify", "score")})

    def values(self, prompts: list[ParsedPrompt], task: str, call: PoolingCall) -> list[Any]:
        assert task == "score"
        self.prompts = prompts
        return []


@pytest.mark.parametrize("limit", [None, 9, -1])
def test_pairs_become_prompts_as_transformers_makes_them(tmp_path: Path, limit: int | None) -> None:
    from transformers import PreTrainedTokenizerFast

    directory = pair_tokenizer(tmp_path)
    tokenizer, peer = load_tokenizer(directory), PreTrainedTokenizerFast.from_pretrained(directory)
    texts = ["the dog", CORPUS[0], "a", CORPUS[1]]
    pooling: Any = _PoolingThatListens()
    scoring = OfflineScoring(pooling, lambda: tokenizer, lambda chat, template: "")
    cut: dict[str, Any] = {} if limit is None else {"truncation": True, "max_length": limit if limit > 0 else 24}
    for first in ("quick fox", CORPUS[1]):
        scoring.scores(ScoredPairs.of(first, texts), PoolingCall(truncate_prompt_tokens=limit), "")
        for prompt, text in zip(pooling.prompts, texts, strict=True):
            expected = peer(first, text, return_token_type_ids=True, **cut)
            assert prompt.token_ids == expected["input_ids"]
            assert prompt.second_from == expected["token_type_ids"].index(1)


def test_a_cross_encoder_reads_two_texts_at_once(tmp_path: Path) -> None:
    """The second text has a type of its own, which changes the score."""
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = BertConfig(vocab_size=320, max_position_embeddings=64, num_labels=1, **sizes)
    model = BertForSequenceClassification(config).eval()
    randomise(model, 0.15, 0.15)
    model.save_pretrained(tmp_path)
    peer = PreTrainedTokenizerFast.from_pretrained(pair_tokenizer(tmp_path))
    texts = ["the dog", CORPUS[0], CORPUS[1]]
    with LLM(str(tmp_path), dtype="float32") as llm:
        outputs = llm.score("quick fox", texts, truncate_prompt_tokens=24, use_tqdm=False)
        with pytest.raises(InvalidRequestError, match="writes no text"):
            llm.generate("quick fox")
    for output, text in zip(outputs, texts, strict=True):
        inputs = peer(
            "quick fox", text, truncation=True, max_length=24, return_tensors="pt", return_token_type_ids=True
        )
        one_type = {**inputs, "token_type_ids": torch.zeros_like(inputs["input_ids"])}
        with torch.inference_mode():
            expected, other = (torch.sigmoid(model(**each).logits).item() for each in (inputs, one_type))
        assert output.outputs.score == pytest.approx(expected, abs=1e-5) != pytest.approx(other, abs=1e-3)


def test_prompts_of_the_models_files_go_before_texts(tmp_path: Path) -> None:
    directory = make_tiny("llama", tmp_path)
    add_modules(directory, ("Pooling", {"word_embedding_dimension": 64, "pooling_mode_lasttoken": True}))
    prompts = {"query": "12 monkeys: ", "title": "words "}
    settings = {"prompts": prompts, "default_prompt_name": "title"}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with LLM(str(directory), **OPTIONS) as llm:
        encode = llm.get_tokenizer().encode
        ids = {"prompt_token_ids": encode("the dog")}
        for name, prefix in (("query", prompts["query"]), (None, prompts["title"])):
            outputs = llm.embed(["the dog", ids], prompt_name=name, use_tqdm=False)
            assert [output.prompt_token_ids for output in outputs] == [encode(prefix + "the dog"), encode("the dog")]
        with pytest.raises(InvalidRequestError, match="no prompt 'spam': it has query, title"):
            llm.embed("the dog", prompt_name="spam")
        with pytest.raises(InvalidRequestError, match="writes no text: it can embed"):
            llm.generate("the dog")


def test_a_model_of_one_label_scores_pairs(tmp_path: Path) -> None:
    model = make_headed("llama", tmp_path, "AutoModelForSequenceClassification", num_labels=1)
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}"
    with LLM(str(tmp_path), **OPTIONS) as llm:
        encode = llm.get_tokenizer().encode
        pairs = llm.score("the dog", ["12 monkeys", "a fox"], use_tqdm=False)
        rendered = llm.score("the dog", "a fox", chat_template=template, use_tqdm=False)
        (probs,) = (output.outputs.probs for output in llm.classify("the dog", use_tqdm=False))
    with LLM(str(tmp_path), chat_template=template, **OPTIONS) as llm:
        assert llm.score("the dog", "a fox", use_tqdm=False)[0].outputs == rendered[0].outputs
    assert rendered[0].prompt_token_ids == encode("query: the dog document: a fox ", add_special_tokens=False)
    own = "{% if messages[0].role == 'query' and messages[1].role == 'document' %}" + template + "{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(own)
    with LLM(str(tmp_path), **OPTIONS) as llm:
        assert llm.score("the dog", "a fox", use_tqdm=False)[0].outputs == rendered[0].outputs
    for output in (*pairs, *rendered):
        with torch.inference_mode():
            logits = model(torch.tensor([output.prompt_token_ids])).logits
        assert output.outputs.score == pytest.approx(torch.sigmoid(logits[0, 0]).item(), abs=1e-5)
    assert len(probs) == 1 and 0 < probs[0] < 1


def test_values_that_are_no_numbers_fail_their_request_alone(tmp_path: Path) -> None:
    """Whatever is made of them: an activation, or a mean, would make numbers of them again."""
    directory = make_tiny("llama", tmp_path)
    weights = safetensors.torch.load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"][9] = torch.inf
    safetensors.torch.save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with LLM(str(directory), max_num_batched_tokens=16, **OPTIONS) as llm:
        alone = embeddings(llm, [[5, 6, 7]])
        for prompt in ([5, 9, 7], [9, *range(20, 60)]):
            with pytest.raises(CadenceError, match="NaN or infinite"):
                llm.embed([[5, 6, 7], prompt], use_tqdm=False)
        assert np.array_equal(embeddings(llm, [[5, 6, 7]]), alone)


def test_an_engine_in_its_own_process_gives_the_same(llm: LLM, directory: str) -> None:
    expected = embeddings(llm, TEXTS)

    async def encoded(engine: AsyncLLMEngine, number: int, **options: Any) -> list[Any]:
        params = PoolingParams(task="embed", **options)
        return [output async for output in engine.encode(TEXTS[number], params, f"request-{number}")]

    async def check(engine: AsyncLLMEngine) -> None:
        found = await asyncio.gather(*(encoded(engine, number) for number in range(len(TEXTS))))
        assert [len(outputs) for outputs in found] == [1] * len(TEXTS)
        assert np.array_equal(np.stack([outputs[0].outputs.data for outputs in found]), expected)
        (cut,) = await encoded(engine, 0, truncate_prompt_tokens=4)
        assert cut.prompt_token_ids == llm.get_tokenizer().encode(TEXTS[0])[:4]
        assert await engine.get_supported_tasks() == ("generate", "embed", "token_embed")
        with pytest.raises(InvalidRequestError, match="cannot classify"):
            await anext(engine.encode(TEXTS[0], PoolingParams(task="classify"), "classify"))

    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=directory, **OPTIONS))
    try:
        asyncio.run(check(engine))
    finally:
        engine.shutdown()
