"""Encoders in GGUF files: the same values as from a checkpoint, the same tokens as from BERT's own tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from cadence.core.pooling_params import PoolingParams
from cadence.entrypoints.llm import LLM
from cadence.gguf.names import PLACES
from tests.helpers.gguf_files import add_metadata
from tests.helpers.tiny_encoders import make_encoder, states_of
from tests.helpers.tiny_models import VOCAB

pytestmark = pytest.mark.engine

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "##ly", "run", "##ning", "fox", ",", "cafe"]
_PROMPTS = [[5, 9, 200, 31], [8], [7] * 3 + list(range(20, 200))]


def written(directory: Path, arch: str, kind: str, pooling: int) -> Path:
    """As llama.cpp's converter writes a checkpoint: matrices of layers in blocks of one type."""
    held = load_file(directory / "model.safetensors")
    writer = GGUFWriter(directory / "model.gguf", arch)
    for key, value in _metadata(arch, pooling).items():
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
