"""The GGUF reader says what the `gguf` package wrote, and meets damaged files with one kind of error naming them."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from cadence.core.errors import WeightsError
from cadence.gguf import open_weights, read_config, read_tokenizer
from cadence.gguf.file import GGML_TYPES, GGUFFile
from tests.helpers.gguf_files import write_gguf

METADATA = {
    ".block_count": 3,
    ".rope.freq_base": 1e4,
    "flag": True,
    "text": "für 日本 \n",
    "tokens": ["a", "", "日本", "x" * 300],
    "scores": [0.5, -1.0, 2.25],
    "types": [1, 2, 3],
    "tokenizer.ggml.tokens": ["<s>", "", "日本"],
    "tokenizer.ggml.eos_token_id": 1,
}
TENSORS = {
    "first.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "second": np.array([1.5, -2.5], np.float32),
    "third": np.arange(8, dtype=np.float32).reshape(2, 1, 4),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "small.gguf", "llama", METADATA, TENSORS)


def test_metadata_and_tensors_come_back(path: Path) -> None:
    file = GGUFFile(path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 3
    for key in ("flag", "text", "tokens"):
        assert file.metadata[key] == METADATA[key]
    np.testing.assert_array_equal(file.metadata["scores"], METADATA["scores"])
    assert list(file.tensors) == list(TENSORS)
    for name, array_np in TENSORS.items():
        tensor = file.tensors[name]
        assert (tensor.shape, tensor.type.name) == (array_np.shape, "F32")
        np.testing.assert_array_equal(file.data(tensor).view(np.float32).reshape(tensor.shape), array_np)


def test_types_have_the_sizes_of_the_format() -> None:
    for type_id, kind in GGML_TYPES.items():
        theirs = gguf.GGMLQuantizationType(type_id)
        assert (kind.name, kind.block, kind.nbytes) == (theirs.name, *gguf.GGML_QUANT_SIZES[theirs])


def test_writing_to_a_tensor_does_not_change_the_file(path: Path) -> None:
    before = path.read_bytes()
    file = GGUFFile(path)
    file.data(file.tensors["second"])[:] = 0
    assert path.read_bytes() == before


def test_without_vocabulary_its_strings_alone_are_passed_over(path: Path) -> None:
    """They are not even decoded."""
    whole, file = path.read_bytes(), GGUFFile(path)
    path.write_bytes(whole.replace(b"<s>", b"\xff\xff\xff"))
    with pytest.raises(WeightsError, match="is not UTF-8"):
        GGUFFile(path)
    bare = GGUFFile(path, with_vocabulary=False)
    assert list(bare.metadata) == [key for key in file.metadata if key != "tokenizer.ggml.tokens"]
    assert bare.tensors == file.tensors


@pytest.mark.parametrize("with_vocabulary", [True, False])
def test_every_truncation_is_a_weights_error_naming_the_file(path: Path, with_vocabulary: bool) -> None:
    whole = path.read_bytes()
    last = max(t.offset + t.nbytes for t in GGUFFile(path).tensors.values())
    for length in range(0, last, 1 if with_vocabulary else 7):
        path.write_bytes(whole[:length])
        with pytest.raises(WeightsError, match=r"small\.gguf"):
            GGUFFile(path, with_vocabulary=with_vocabulary)


def test_config_and_weights_read_no_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bool] = []

    def noted(path: Path, *, with_vocabulary: bool = True) -> GGUFFile:
        opened.append(with_vocabulary)
        raise WeightsError(str(path))

    monkeypatch.setattr("cadence.gguf.GGUFFile", noted)
    for read in (read_config, lambda path: open_weights(path, {}), read_tokenizer):
        with pytest.raises(WeightsError):
            read(tmp_path)
    assert opened == [False, False, True]


def test_random_damage_never_raises_anything_else(path: Path) -> None:
    whole = path.read_bytes()
    pick = random.Random(0)
    refused = 0
    for _ in range(800):
        damaged = bytearray(whole)
        for _ in range(pick.choice((1, 1, 4))):
            damaged[pick.randrange(len(damaged))] = pick.choice((0, 1, 0x7F, 0x80, 0xFF, pick.randrange(256)))
        path.write_bytes(damaged)
        try:
            file = GGUFFile(path)
            for tensor in file.tensors.values():
                assert file.data(tensor).nbytes == tensor.nbytes
        except WeightsError as error:
            refused += 1
            assert "small.gguf" in str(error)
    assert refused > 150


HUGE = struct.pack("<Q", 2**63)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04 and more", "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<I", 3) + HUGE + bytes(64), "number of tensors"),
        (b"GGUF" + struct.pack("<IQ", 3, 0) + HUGE + bytes(64), "number of metadata entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + HUGE + bytes(64), "needs 9223372036854775808 bytes"),
    ],
)
def test_absurd_files_are_refused(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=what) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_a_weights_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such file"):
        GGUFFile(tmp_path / "none.gguf")


def test_version_2_is_read(path: Path) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<I", 2) + path.read_bytes()[8:])
    assert GGUFFile(path).metadata["text"] == METADATA["text"]
