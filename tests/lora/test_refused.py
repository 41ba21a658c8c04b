"""Adapters that cannot be: one sentence each, which names the file and what is wrong with it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from cadence.core.errors import AdapterError
from cadence.kernels.reference.ops import ReferenceOps
from cadence.lora.adapter import WEIGHTS_FILE, Adapter, open_adapter
from cadence.lora.config import CONFIG_FILE
from cadence.lora.limits import LoraLimits
from cadence.lora.names import parse_name
from cadence.models.loader.safetensors_file import SafetensorsFile
from tests.helpers.adapters import AdaptedModel, files_of
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

LIMITS = LoraLimits(num_slots=2, max_rank=16, max_file_bytes=1 << 22)
Q = "base_model.model.model.layers.0.self_attn.q_proj"
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


def tensors(rank: int = 4, inputs: int = 64, out: int = 64) -> dict[str, torch.Tensor]:
    return {f"{Q}.lora_A.weight": torch.ones(rank, inputs), f"{Q}.lora_B.weight": torch.ones(out, rank)}


def write(to: Path, config: object = CONFIG, held: dict[str, torch.Tensor] | None = None) -> Path:
    to.mkdir(exist_ok=True)
    (to / CONFIG_FILE).write_text(json.dumps(config))
    save_file(tensors() if held is None else held, to / WEIGHTS_FILE)
    return to


def read_adapter(directory: Path, limits: LoraLimits) -> Adapter:
    """All of it, for whatever model."""
    file = open_adapter(directory, limits)
    return file.read(file.shapes())


def refused(directory: Path, *words: str, limits: LoraLimits = LIMITS) -> None:
    with pytest.raises(AdapterError) as found:
        read_adapter(directory, limits)
    message = str(found.value)
    assert str(directory) in message
    assert "\n" not in message
    assert len(message) < 600
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "IA3"}, ("peft_type", "IA3")),
        ({"peft_type": "PREFIX_TUNING"}, ("peft_type", "PREFIX_TUNING")),
        ({"peft_type": None}, ("peft_type",)),
        ({"r": 0}, ("'r'", "0")),
        ({"r": "4"}, ("'r'",)),
        ({"r": True}, ("'r'",)),
        ({"lora_alpha": "x"}, ("lora_alpha",)),
        ({"lora_alpha": float("nan")}, ("lora_alpha",)),
        ({"lora_alpha": float("inf")}, ("lora_alpha",)),
        ({"bias": "some"}, ("'bias'", "lora_only")),
        ({"rank_pattern": [1]}, ("rank_pattern",)),
        ({"rank_pattern": {"q_proj": -1}}, ("rank_pattern", "-1")),
        ({"alpha_pattern": {"q_proj": None}}, ("alpha_pattern",)),
        ({"rank_pattern": {"(": 4}}, ("rank_pattern", "regular expression")),
        ({"rank_pattern": {r"(a)\1": 4}}, ("rank_pattern", "regular expression")),
        ({"rank_pattern": {"(?<=a)b": 4}}, ("rank_pattern", "regular expression")),
        ({"rank_pattern": {"(a{99}){99}": 4}}, ("rank_pattern", "512 states")),
        ({"alpha_pattern": {f"{n}.*" + "a?" * 99: 4 for n in range(20)}}, ("alpha_pattern", "2048 states")),
        ({"rank_pattern": {"a" * 1000: 4}}, ("rank_pattern", "256 characters")),
        ({"trainable_token_indices": [1, 2]}, ("trainable_token_indices",)),
        ({"layer_replication": [[0, 2]]}, ("layer_replication",)),
        ({"target_parameters": ["experts"]}, ("target_parameters",)),
        ({"use_qalora": True}, ("use_qalora",)),
        ({"alora_invocation_tokens": [5]}, ("alora_invocation_tokens",)),
        ({"ensure_weight_tying": True}, ("ensure_weight_tying",)),
        ({"init_lora_weights": "pissa_niter_4"}, ("init_lora_weights", "path_initial_model")),
        ({"lora_bias": True, "use_dora": True}, ("lora_bias", "use_dora")),
        ({"use_dora": True}, ("lora_magnitude_vector", "use_dora")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_configurations(changes: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    refused(write(tmp_path / "a", CONFIG | changes), CONFIG_FILE if "use_dora" not in changes else "", *words)


def test_files(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no such file")
    directory = write(tmp_path / "a")
    (directory / CONFIG_FILE).write_text("[]")
    refused(directory, CONFIG_FILE, "object")
    (directory / CONFIG_FILE).write_text("{")
    refused(directory, CONFIG_FILE, "JSON")
    write(directory)
    (directory / WEIGHTS_FILE).rename(directory / "adapter_model.bin")
    refused(directory, "adapter_model.bin", "safetensors")
    (directory / "adapter_model.bin").unlink()
    refused(directory, WEIGHTS_FILE, "no such file")
    save_file({}, directory / WEIGHTS_FILE)
    refused(directory, "no tensors")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": ' * 101 + "1" + "}" * 101, ("nested too deeply",)),
        ('{"a": ' * 5000 + "1" + "}" * 5000, ("nested too deeply",)),
        ('{"target_modules": ' + "[" * 60000 + "]" * 60000 + "}", ("nested too deeply",)),
        ('{"a": [' + "{}," * (1 << 18) + "{}]}", ("lists and objects",)),
        ('{"a": "' + "x" * (5 << 20) + '"}', ("larger than 4 MiB",)),
        ('{"peft_type": "' + "x" * (1 << 20) + '"}', ("'peft_type'", "LORA")),
        ('{"peft_type": "LORA", "r": 1' + "0" * 4000 + "}", ("'r'",)),
        ('{"peft_type": "LORA", "r": 1' + "0" * 5000 + "}", ("JSON", "digits")),
        ('{"peft_type": "LORA", "lora_alpha": 1e999}', ("lora_alpha",)),
    ],
    ids=["levels", "objects", "lists", "many", "huge", "a long text", "a long number", "a longer number", "infinite"],
)
def test_configurations_that_are_huge_or_deep(content: str, words: tuple[str, ...], tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    (directory / CONFIG_FILE).write_text(content)
    refused(directory, CONFIG_FILE, *words)


A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
SIZE = 4 * 64 * 4  # bytes of either


def entry(begin: int, end: int, shape: object = (4, 64), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


FINE = {A: entry(0, SIZE), B: entry(SIZE, 2 * SIZE, (64, 4))}


def write_raw(directory: Path, header: object, length: int | None = None, data: int = 2 * SIZE) -> None:
    """length: what the file says of its header's; data: bytes after it"""
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    said = len(text) if length is None else length
    (directory / WEIGHTS_FILE).write_bytes(said.to_bytes(8, "little") + text + bytes(data))


@pytest.mark.parametrize(
    "wrong",
    [
        {**FINE, B: entry(SIZE, 1 << 40, (64, 4))},
        {**FINE, B: entry(1 << 40, (1 << 40) + SIZE, (64, 4))},
        {**FINE, B: entry(2 * SIZE, SIZE, (64, 4))},
        {**FINE, B: entry(-SIZE, 0, (64, 4))},
        {**FINE, B: entry(0, SIZE, (64, 4))},
        {**FINE, B: entry(SIZE // 2, SIZE // 2 + SIZE, (64, 4))},
        {**FINE, B: entry(SIZE, 2 * SIZE, (64, 5))},
        {**FINE, B: entry(SIZE, 2 * SIZE, (1 << 40, 1 << 40))},
        {**FINE, B: entry(SIZE, 2 * SIZE, (-64, -4))},
        {**FINE, B: entry(SIZE, 2 * SIZE, (64, 4), "F16")},
        {**FINE, B: entry(SIZE, 2 * SIZE, (64, 4), "F99")},
        {**FINE, B: entry(SIZE, 2 * SIZE, "64")},
        {**FINE, B: {"dtype": "F32"}},
        {**FINE, B: 1},
        [FINE],
        "{",
        '{"a": ' * 100_000,
    ],
    ids=[
        "ends beyond the file", "begins beyond the file", "ends before it begins", "begins before the data", "the same",
        "overlap", "shape", "overflow", "negative", "half the size", "type", "no shape", "no offsets", "no entry",
        "a list", "no JSON", "deep",
    ],
)  # fmt: skip
def test_tensors_that_are_not_where_the_file_says(wrong: object, tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    write_raw(directory, FINE)
    assert next(iter(read_adapter(directory, LIMITS).modules.values())).rank == 4, (
        "but for what is wrong, such a file is read"
    )
    write_raw(directory, wrong)
    refused(directory, WEIGHTS_FILE)


def test_lengths_that_a_file_does_not_have(tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    for length in (0, 1, 1 << 20, 1 << 40, (1 << 64) - 1):
        write_raw(directory, FINE, length)
        refused(directory, WEIGHTS_FILE, "truncated or corrupt")
    for data in (0, 2 * SIZE - 1, 2 * SIZE + 1):
        write_raw(directory, FINE, data=data)
        refused(directory, WEIGHTS_FILE, "truncated or corrupt")
    for content in (b"", b"1234567", bytes(8)):
        (directory / WEIGHTS_FILE).write_bytes(content)
        refused(directory, WEIGHTS_FILE, "truncated or corrupt")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    with open(directory / WEIGHTS_FILE, "r+b") as file:
        file.truncate(1 << 40)
    refused(directory, WEIGHTS_FILE, f"the {LIMITS.max_file_bytes >> 20} MiB an adapter")


@examples(25, 60)
@given(at=st.integers(0, 2500), byte=st.integers(0, 255), cut=st.booleans())
def test_truncated_and_corrupt_files(at: int, byte: int, cut: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever its bytes, a file is read or refused."""
    directory = write(tmp_path_factory.mktemp("a"))
    raw = bytearray((directory / WEIGHTS_FILE).read_bytes())
    at %= len(raw)
    raw[at] = byte
    (directory / WEIGHTS_FILE).write_bytes(bytes(raw[:at] if cut else raw))
    try:
        read_adapter(directory, LIMITS)
    except AdapterError as error:
        assert str(directory) in str(error)
        assert "\n" not in str(error)


def without(*names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors().items() if name not in names}


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (without(f"{Q}.lora_A.weight"), ("q_proj", "no lora_A")),
        (without(f"{Q}.lora_B.weight"), ("q_proj", "no lora_B")),
        (tensors(rank=5), ("rank 5", "says 4")),
        ({**tensors(), f"{Q}.lora_B.weight": torch.ones(64, 3)}, ("no rank in common",)),
        ({**tensors(), f"{Q}.lora_A.weight": torch.ones(4)}, ("no rank in common",)),
        ({**tensors(), "something": torch.ones(2)}, ("something",)),
        ({**tensors(), f"{Q}.lora_C.weight.x": torch.ones(2)}, ("lora_C",)),
        ({**tensors(), f"{Q}.lora_A.default.weight": torch.ones(4, 64)}, ("same of one module",)),
        ({**tensors(), f"{Q}.base_layer.bias": torch.ones(64)}, ("bias", "none")),
        ({**tensors(), f"{Q}.lora_magnitude_vector": torch.ones(64)}, ("lora_magnitude_vector",)),
        ({**tensors(), f"{Q}.lora_A.weight": torch.full((4, 64), float("nan"))}, ("lora_A", "infinite")),
        ({**tensors(), f"{Q}.lora_A.weight": torch.ones(4, 64, dtype=torch.int64)}, ("int64", "bfloat16")),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_tensors(held: dict[str, torch.Tensor], words: tuple[str, ...], tmp_path: Path) -> None:
    refused(write(tmp_path / "a", held=held), WEIGHTS_FILE, *words)


def test_a_rank_above_the_limit(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", CONFIG | {"r": 17}, tensors(rank=17))
    refused(directory, "rank 17", "max_lora_rank is 16")
    read_adapter(directory, LoraLimits(max_rank=17))


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (tensors(inputs=65), ("q_proj.lora_A.weight", "[4, 65]", "[4, 64]")),
        (tensors(out=32), ("q_proj.lora_B.weight", "[32, 4]", "[64, 4]")),
        ({name.replace("q_proj", "z_proj"): t for name, t in tensors().items()}, ("z_proj", "none of this model's")),
        ({name.replace("layers.0", "layers.9"): t for name, t in tensors().items()}, ("layers.9",)),
        ({"base_model.model.model.norm.weight": torch.ones(64)}, ("model.norm",)),
        ({f"{Q}.weight": torch.ones(64, 64)}, ("q_proj", "weight")),
        ({"base_model.model.lm_head.weight": torch.ones(400, 64)}, ("lm_head.weight", "[400, 64]", "vocabulary")),
        ({**tensors(), f"{Q}.base_layer.bias": torch.ones(64)}, ("q_proj", "bias", "none in this model")),
        ({**tensors(), **{n.replace("model.model.model", "model.model"): t for n, t in tensors().items()}}, ("two",)),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_adapters_of_other_models(
    held: dict[str, torch.Tensor], words: tuple[str, ...], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model = AdaptedModel(files_of(tiny_model("llama")), ReferenceOps())
    file = open_adapter(write(tmp_path / "a", CONFIG | {"bias": "all"}, held), model.limits)
    with pytest.raises(AdapterError) as found:
        model.lora.prepare(file)
    assert str(tmp_path / "a" / WEIGHTS_FILE) in str(found.value)
    for word in words:
        assert word in str(found.value)


def write_sparse(directory: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Tensors of float16 in a file that takes no room on the disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = entry(end, end + size, shape, "F16")
        end += size
    write_raw(directory, header, data=0)
    os.truncate(directory / WEIGHTS_FILE, (directory / WEIGHTS_FILE).stat().st_size + end)


E = "base_model.model.model.embed_tokens"
GREAT = 1 << 24


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({A: (4, GREAT), B: (64, 4)}, ("this model takes [4, 64]",)),
        ({A: (4, 64), B: (GREAT, 4)}, ("this model takes [64, 4]",)),
        ({A: (GREAT, 64), B: (64, GREAT)}, ("max_lora_rank",)),
        ({A: (4, GREAT)}, ("no lora_B",)),
        ({A: (4, 64), B: (64, 4), f"{Q}.base_layer.bias": (GREAT,)}, ("bias",)),
        ({f"{E}.weight": (GREAT, 64)}, ("vocabulary",)),
        ({A.replace("layers.0", "layers.9"): (4, GREAT), B.replace("layers.0", "layers.9"): (64, 4)}, ("layers.9",)),
        ({f"{Q}.weight": (GREAT,)}, ("cannot have a weight",)),
        ({A: (4, 64, GREAT), B: (64, 4)}, ("vectors and matrices",)),
        ({A: (0, GREAT), B: (64, 0), f"{E}.weight": (GREAT, 64)}, ("vectors and matrices",)),
        ({A: (5, 64), B: (64, 5)}, ("rank 5", "says 4")),
    ],
    ids=["A", "B", "rank", "half", "bias", "embedding", "layer", "weight", "tensor", "empty", "another rank"],
)
def test_no_tensor_is_read_of_what_does_not_fit(
    shapes: dict[str, tuple[int, ...]],
    words: tuple[str, ...],
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files of up to 4 GB without a byte on the disk: all that is looked at is the header."""
    model = AdaptedModel(files_of(tiny_model("llama")), ReferenceOps(), max_rank=16)
    directory = write(tmp_path / "a")
    write_sparse(directory, shapes)
    loaded: list[str] = []
    monkeypatch.setattr(SafetensorsFile, "load", lambda _, name: loaded.append(name))
    limits = LoraLimits(max_rank=16, max_file_bytes=1 << 50)
    with pytest.raises(AdapterError) as found:
        model.lora.prepare(open_adapter(directory, limits))
    assert all(word in str(found.value) for word in (str(directory), *words)), found.value
    assert loaded == []


def test_headers_are_bounded(tmp_path: Path) -> None:
    directory = write(tmp_path / "a")
    write_raw(directory, "{" + " " * (17 << 20) + "}")
    refused(directory, "header", str(16 << 20), limits=LoraLimits())
    write_raw(directory, {"x" * 10_000 + ".lora_A.weight": entry(0, SIZE)}, data=SIZE)
    refused(directory, "nothing that a LoRA adapter has")


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    one = read_adapter(write(tmp_path / "one"), LIMITS).digest
    assert read_adapter(write(tmp_path / "two"), LIMITS).digest == one
    assert read_adapter(write(tmp_path / "three", CONFIG | {"lora_alpha": 9}), LIMITS).digest != one
    changed = {name: tensor * 2 for name, tensor in tensors().items()}
    assert read_adapter(write(tmp_path / "four", held=changed), LIMITS).digest != one


@given(st.text(alphabet="lora_AB.weightbiasdefaultmodules_to_savebase_layer\n /", max_size=60))
def test_names_are_parsed_or_not(name: str) -> None:
    found = parse_name(name)
    assert found is None or (found[0] and "\n" not in found[0] and "/" not in found[0])
