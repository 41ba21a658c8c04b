"""Encoders in GGUF files: the same values as from a checkpoint, the same tokens as from BERT's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from cadence.core.errors import WeightsError
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.llm import LLM
from cadence.gguf.names import PLACES
from tests.helpers.gguf_files import add_metadata
from tests.helpers.tiny_encoders import make_encoder, states_of
from tests.helpers.tiny_models import VOCAB

pytestmark = pytest.mark.engine

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "##ly", "run", "##ning", "fox", ",", "cafe"]
_PROMPTS = [[5, 9, 200, 31], [8], [7] * 3 + list(range(20, 200))]


def written(
    directory: Path, arch: str, kind: str, pooling: int, more: dict[str, Any] | None = None, first: int = 0
) -> Path:
    """As llama.cpp's converter writes a checkpoint: matrices of layers in blocks of one type. more: metadata in place
    of BERT's; first: rows of positions that are left out"""
    held = {name.removeprefix("roberta."): data for name, data in load_file(directory / "model.safetensors").items()}
    positions = "embeddings.position_embeddings.weight"
    if first:
        held[positions] = held[positions][first:]
    writer = GGUFWriter(directory / "model.gguf", arch)
    for key, value in (_metadata(arch, pooling) | (more or {})).items():
        add_metadata(writer, key, value)
    for place in PLACES[arch]:
        for ending in ("weight", "bias"):
            for layer in range(3 if "{}" in place.hf else 1):
                name = f"{place.hf.format(layer)}.{ending}"
                if name in held:
                    own = kind if place.gguf.startswith("blk.") and held[name].ndim == 2 else "F32"
                    raw = GGMLQuantizationType[own]
                    data_np = quants.quantize(held[name], raw)
                    writer.add_tensor(f"{place.gguf.format(layer)}.{ending}", data_np, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return directory / "model.gguf"


def _metadata(arch: str, pooling: int) -> dict[str, Any]:
    pieces = ["▁" + word if not word.startswith(("[", "##")) else word.removeprefix("##") for word in _WORDS]
    tokens = pieces + [f"▁w{index}" for index in range(VOCAB - len(pieces))]
    special = {"padding": 0, "unknown": 1, "cls": 2, "seperator": 3, "mask": 4}
    return {
        f"{arch}.block_count": 3,
        f"{arch}.context_length": 256,
        f"{arch}.embedding_length": 96,
        f"{arch}.feed_forward_length": 160,
        f"{arch}.attention.head_count": 3,
        f"{arch}.attention.layer_norm_epsilon": 1e-12,
        f"{arch}.attention.causal": False,
        f"{arch}.pooling_type": pooling,
        f"{arch}.rope.freq_base": 1000.0,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        **{f"tokenizer.ggml.{name}_token_id": token_id for name, token_id in special.items()},
    }


def bert_tokenizer() -> Tokenizer:
    words = _WORDS + [f"w{index}" for index in range(VOCAB - len(_WORDS))]
    tokenizer = Tokenizer(models.WordPiece({word: token_id for token_id, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


@pytest.mark.parametrize(("family", "arch", "pooling"), [("bert", "bert", 2), ("nomic", "nomic-bert", 1)])
def test_values_are_those_of_the_checkpoint(family: str, arch: str, pooling: int, tmp_path: Path) -> None:
    directory = make_encoder(family, tmp_path, hidden_size=96, intermediate_size=160)
    text, expected = "The quickly running  Café, fox!", states_of(directory)
    with LLM(
        str(written(directory, arch, "F32", pooling)), dtype="float32", max_num_seqs=4, kv_cache_dtype="float32"
    ) as llm:
        prompts = [{"prompt_token_ids": prompt} for prompt in _PROMPTS]
        vectors = llm.encode(prompts, PoolingParams(task="embed"), use_tqdm=False)
        (named,) = llm.encode(text, PoolingParams(task="embed"), use_tqdm=False)
    assert list(named.prompt_token_ids) == bert_tokenizer().encode(text).ids
    for prompt, found in zip(_PROMPTS, vectors, strict=True):
        states = expected(prompt)
        vector = states[0] if pooling == 2 else states.mean(axis=0)
        np.testing.assert_allclose(np.asarray(found.outputs.data), vector / np.linalg.norm(vector), atol=1e-5)


def test_blocks_of_few_bits_are_near(tmp_path: Path) -> None:
    directory = make_encoder("bert", tmp_path, hidden_size=96, intermediate_size=160)
    expected = states_of(directory)
    with LLM(str(written(directory, "bert", "Q8_0", 2)), dtype="float32", max_num_seqs=4) as llm:
        for prompt in _PROMPTS:
            asked = [{"prompt_token_ids": prompt}]
            (found,) = llm.encode(asked, PoolingParams(task="embed"), use_tqdm=False)
            vector = expected(prompt)[0]
            assert np.asarray(found.outputs.data) @ vector / np.linalg.norm(vector) > 0.995


_PIECES = ["<s>", "<pad>", "</s>", "<unk>", *("▁the", "▁qui", "ck", "▁", "f", "o", "x", "ox", "▁fo", "fox")]
_TYPES = [3, 3, 3, 2]  # control tokens, and that of what is unknown


def _unigrams() -> tuple[dict[str, Any], Any]:
    """As XLM-R's -> metadata, and transformers' own of the same pieces."""
    tokens = _PIECES + [f"▁w{index}" for index in range(VOCAB - len(_PIECES))]
    scores = [0.0] * 4 + [-1.0 - 0.25 * index for index in range(VOCAB - 4)]
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": _TYPES + [1] * (VOCAB - 4),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }
    own = transformers.XLMRobertaTokenizer(vocab=list(zip(tokens, scores, strict=True)), mask_token="<s>")
    return metadata, own


def _pieces_of_bytes() -> tuple[dict[str, Any], Any]:
    """The same as RoBERTa's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, "th", "the"]
    tokens = tokens[:VOCAB] + [f"<{index}>" for index in range(VOCAB - len(tokens))]
    merges = ["t h", "th e"]
    metadata, _ = _unigrams()
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "roberta-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": _TYPES + [1] * (len(tokens) - 4),
    }
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    pairs = [tuple(merge.split()) for merge in merges]
    return metadata, transformers.RobertaTokenizer(vocab=vocab, merges=pairs, mask_token="<s>")


@pytest.mark.parametrize("tokens", [_unigrams, _pieces_of_bytes])
def test_a_reranker_of_robertas_kind(tokens: Callable[[], tuple[dict[str, Any], Any]], tmp_path: Path) -> None:
    """Rank pooling and two maps; its file has no rows for positions that are never used."""
    sizes = {"hidden_size": 96, "intermediate_size": 160, "num_labels": 1}
    directory, (metadata, own) = make_encoder("xlm_roberta", tmp_path, "texts", **sizes), tokens()
    path = written(directory, "bert", "F32", 4, metadata | {"bert.classifier.output_labels": ["fits"]}, first=2)
    query, documents = "the fox", ["the  quick fox, the foxes", "w1 w2"]
    with LLM(str(path), dtype="float32", max_num_seqs=4, kv_cache_dtype="float32") as llm:
        found = llm.score(query, documents, use_tqdm=False)
        (one,) = llm.encode(query, PoolingParams(task="classify"), use_tqdm=False)
        assert llm.llm_engine.config.pooling.labels == ("fits",)
    assert list(one.prompt_token_ids) == own(query)["input_ids"]
    expected = states_of(directory, "texts")
    for document, score in zip(documents, found, strict=True):
        pair = own(query, document)["input_ids"]
        assert list(score.prompt_token_ids) == pair
        np.testing.assert_allclose(score.outputs.score, 1 / (1 + np.exp(-expected(pair)[0])), atol=1e-5)


def test_an_embedder_of_robertas_kind(tmp_path: Path) -> None:
    directory, (metadata, own) = (
        make_encoder("xlm_roberta", tmp_path, hidden_size=96, intermediate_size=160),
        _unigrams(),
    )
    path = written(directory, "bert", "F32", 2, metadata, first=2)
    with LLM(str(path), dtype="float32", max_num_seqs=4, kv_cache_dtype="float32") as llm:
        (found,) = llm.embed("the quick fox", use_tqdm=False)
    vector = states_of(directory)(own("the quick fox")["input_ids"])[0]
    np.testing.assert_allclose(found.outputs.embedding, vector / np.linalg.norm(vector), atol=1e-5)


def test_a_head_without_its_first_map_is_refused(tmp_path: Path) -> None:
    directory = make_encoder("xlm_roberta", tmp_path, "texts", hidden_size=96, intermediate_size=160)
    held = load_file(directory / "model.safetensors")
    save_file(
        {name: data for name, data in held.items() if "classifier.dense" not in name}, directory / "model.safetensors"
    )
    path = written(directory, "bert", "F32", 4, _unigrams()[0], first=2)
    with pytest.raises(WeightsError, match="the first map of this model's head is not in the file"):
        LLM(str(path))
