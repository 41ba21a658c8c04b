"""A head that does not fit its target, or is none, is refused in one message that names its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from cadence.core.errors import CadenceError
from cadence.models.loader.torch_weights import TorchWeights
from tests.helpers import tiny_heads as heads
from tests.helpers.head_layouts import Target, ends
from tests.helpers.tiny_heads import CONFIG, Tensors, write
from tests.helpers.wide import examples

pytestmark = pytest.mark.device


@pytest.fixture
def llama(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


def changed(tensors: Tensors, config: dict[str, Any], to: Path) -> Path:
    return write(to, tensors, CONFIG | {"draft_vocab_size": heads.DRAFT_VOCAB} | config)


def bad_map(tensors: Tensors) -> None:
    tensors["d2t"][3] = 5000


def short_map(tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"][:-1].clone()


def no_map(tensors: Tensors) -> None:
    del tensors["d2t"]


def extra(tensors: Tensors) -> None:
    tensors["layers.1.mlp.up_proj.weight"] = torch.zeros(2, 2)


def nothing(tensors: Tensors) -> None:
    """As it is."""


BAD: list[tuple[Callable[[Tensors], None], dict[str, Any], str]] = [
    (bad_map, {}, r"d2t leads to ids from \d+ to 5003, the target's are 0 to 319: a head of another model"),
    (short_map, {}, r"d2t maps 100 tokens and must be \[100\] of int64, found \[99\] of int64"),
    (no_map, {}, "it knows 100 of 320 tokens, but no 'd2t' says which"),
    (extra, {}, "left over: layers.1.mlp.up_proj.weight"),
    (nothing, {"target_hidden_size": 128}, "its hidden size is 128, the target's 64: a head of another model"),
    (nothing, {"draft_vocab_size": 90}, r"d2t maps 90 tokens"),
    (nothing, {"draft_vocab_size": "many"}, "'draft_vocab_size' must be a whole number"),
    (nothing, {"num_hidden_layers": 2}, "an EAGLE-3 head has one layer, found 2"),
    (nothing, {"eagle_aux_hidden_state_layer_ids": [1, 2, 7]}, r"layers \[1, 2, 7\] of a target with layers 0 to 3"),
    (nothing, {"eagle_aux_hidden_state_layer_ids": [1, 2]}, r"fc.weight \(expected \[64, 128\], found \[64, 192\]\)"),
    (
        nothing,
        {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"},
        "'GptOssForCausalLM' is not supported",
    ),
    (nothing, {"architectures": ["Gemma2ForCausalLM"]}, "layers of Gemma2ForCausalLM are not supported"),
]


@pytest.mark.parametrize(("edit", "config", "message"), BAD)
def test_a_head_that_does_not_fit_is_refused_in_one_message(
    edit: Callable[[Tensors], None], config: dict[str, Any], message: str, llama: Path, tmp_path: Path
) -> None:
    tensors, _ = heads.eagle3(ends(llama), "midlayer.", own_embed=False, before=False)
    edit(tensors)
    with pytest.raises(CadenceError, match=message) as error:
        Target(llama).head("eagle3", changed(tensors, config, tmp_path))
    assert str(tmp_path) in str(error.value)


def test_an_eagle_head_of_another_model_is_refused(llama: Path, tmp_path: Path) -> None:
    tensors, _ = heads.eagle(ends(llama))
    with pytest.raises(CadenceError, match="hidden size is 128, the target's 64: a head of another model"):
        Target(llama).head("eagle", write(tmp_path, tensors, CONFIG | {"hidden_size": 128}))
    with pytest.raises(CadenceError, match="it knows 200 tokens, the target 320: a head of another model"):
        Target(llama).head("eagle", write(tmp_path, tensors, CONFIG | {"vocab_size": 200}))
    with pytest.raises(CadenceError, match=r"missing: fc\.weight"):
        del tensors["fc.weight"]
        Target(llama).head("eagle", write(tmp_path, tensors, CONFIG))


def test_files_without_such_a_head_are_named(llama: Path, tmp_path: Path) -> None:
    target = Target(llama)
    with pytest.raises(CadenceError, match=rf"{llama}: no module for multi-token prediction"):
        target.head("mtp", llama)
    with pytest.raises(CadenceError, match=rf"{llama}: no blocks of Medusa heads"):
        target.head("medusa", llama)
    with pytest.raises(CadenceError, match="'hydra' is not one of eagle, eagle3, medusa, mtp"):
        target.head("hydra", llama)
    with pytest.raises(CadenceError, match=r"config\.json"):
        target.head("eagle", tmp_path)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"no pickle")
    with pytest.raises(CadenceError, match=r"medusa_lm_head\.pt: no file of tensors"):
        target.head("medusa", tmp_path)
    torch.save({"a": [1, 2]}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CadenceError, match="it must hold tensors by their names"):
        target.head("medusa", tmp_path)
    torch.save({"a": CONFIG.items}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CadenceError, match=r"a corrupt one: it holds more than tensors$"):
        target.head("medusa", tmp_path)


def refused_as(found: pytest.ExceptionInfo[CadenceError], path: Path) -> None:
    message = str(found.value)
    assert str(path) in message and "\n" not in message and len(message) < 600, message


MEDUSA: Tensors = {"0.0.linear.weight": torch.ones(4, 4), "0.1.weight": torch.ones(8, 4)}


@examples(60, 600)
@given(at=st.integers(0, 4000), byte=st.integers(0, 255), cut=st.booleans(), in_zip=st.booleans())
@example(at=1000, byte=0, cut=True, in_zip=False)
def test_any_bytes_are_read_or_refused(
    at: int, byte: int, cut: bool, in_zip: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "medusa_lm_head.pt"
    torch.save(MEDUSA, path, _use_new_zipfile_serialization=in_zip)
    raw = bytearray(path.read_bytes())
    at %= len(raw)
    raw[at] = byte
    path.write_bytes(bytes(raw[:at] if cut else raw))
    try:
        assert TorchWeights([path]).names()
    except CadenceError as error:
        assert str(path) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(1).expand(1 << 40), torch.ones(4, 4).to_sparse(), torch.empty(4, 4, device="meta")],
    ids=["one number a million million times", "sparse", "without numbers"],
)
def test_tensors_that_are_not_plain(tensor: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "medusa_lm_head.pt"
    torch.save(MEDUSA | {"0.1.weight": tensor}, path)
    with pytest.raises(CadenceError, match="plain numbers") as found:
        TorchWeights([path])
    refused_as(found, path)


@pytest.mark.parametrize(
    "tensors",
    [
        {"token_map": torch.tensor(3)},
        {"token_map": torch.empty(0, dtype=torch.int64)},
        {"token_map": torch.ones(3)},
        {"token_map": torch.tensor([1 << 40])},
        {"0.0.linear.weight": torch.ones(2)},
        {"0.0.linear.weight": torch.ones(64, 64, dtype=torch.complex64)},
        {f"{'9' * 5000}.0.linear.weight": torch.ones(64, 64)},
        {"9999.0.linear.weight": torch.ones(64, 64)},
    ],
    ids=["a number", "empty", "fractions", "far", "a vector", "complex", "a long number", "many"],
)
def test_medusa_heads_that_are_none(tensors: Tensors, llama: Path, tmp_path: Path) -> None:
    torch.save({"0.0.linear.weight": torch.ones(64, 64)} | tensors, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CadenceError) as found:
        Target(llama).head("medusa", tmp_path)
    refused_as(found, tmp_path)
