"""Every family of encoder-decoder models computes what transformers computes: the encoder's output, and the decoder's
logits over it, whole, in pieces, and beside rows with other contents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.encoded_rows import Content, EncodedRows
from tests.helpers.one_sequence import load
from tests.helpers.tiny_models import VOCAB
from tests.helpers.tiny_seq2seq import FAMILIES, MELS, POSITIONS, SOUND, Seq2SeqOracle, make_seq2seq

pytestmark = pytest.mark.device

MODELS: dict[str, Path] = {}


@pytest.fixture
def tiny_seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def make(family: str) -> Path:
        if family not in MODELS:
            MODELS[family] = make_seq2seq(family, tmp_path_factory.mktemp(family))
        return MODELS[family]

    return make


def tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(1000 * seed + count)).tolist()


def content(family: str, length: int, seed: int = 0) -> Content:
    """Of so many positions of the encoder's output."""
    if family not in SOUND:
        return tokens(length, seed + 50)
    return torch.randn((MELS, 2 * length), generator=torch.Generator().manual_seed(seed + length)).numpy()


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_transformers_whole_in_pieces_and_in_company(family: str, tiny_seq2seq: Callable[[str], Path]) -> None:
    directory = tiny_seq2seq(family)
    model, oracle = load(directory, max_model_len=POSITIONS), Seq2SeqOracle(directory)
    lengths = [POSITIONS] * 3 if family in SOUND else [37, 1, 90]
    contents = [content(family, length, seed) for seed, length in enumerate(lengths)]
    prompts = [tokens(60, 1), tokens(3, 2), tokens(41, 3)]
    theirs = [oracle.logprobs(*each) for each in zip(contents, prompts, strict=True)]
    rows = EncodedRows(model, contents)
    first = rows.feed([prompts[0][:25], prompts[1][:1], prompts[2]])
    close(first[2], theirs[2])
    second = rows.feed([prompts[0][25:59], prompts[1][1:2], []])
    third = rows.feed([prompts[0][59:], prompts[1][2:], []])
    for row in (0, 1):
        close(torch.cat([first[row], second[row], third[row]]), theirs[row])
    alone = EncodedRows(model, contents[:1])
    close(alone.feed([prompts[0][:20]], last_only=True)[0], theirs[0][19:20])
    close(alone.feed([prompts[0][20:]], last_only=True)[0], theirs[0][-1:])
    assert torch.cat(theirs).argmax(dim=-1).unique().numel() > 10, "a model that says the same everywhere proves little"
