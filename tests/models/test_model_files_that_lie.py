"""Whatever a model's files say, they load or are refused in one sentence that names the file, soon and in little
memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, gguf
from cadence.config import hf
from cadence.config.files import fields
from cadence.config.reference import ModelFiles
from cadence.core.errors import CadenceError, ConfigError, ModelFileError, ModelNotFoundError, WeightsError
from cadence.device.cpu import CpuDevice
from cadence.gguf.file import GGUFFile
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.build import BuildContext
from cadence.models.registry import model_class
from tests.helpers import lies
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.tiny_models import FAMILIES, MAX_LEN, make_tiny
from tests.helpers.tiny_states import STATE_FAMILIES
from tests.helpers.wide import mostly_wide, mostly_wide_rows

pytestmark = pytest.mark.engine

SECONDS = 60.0  # of CPU time, for each: a hundred times what it takes, and less than what grows with a lie would take
MEGABYTES = 400  # for all that one test tries
NO_FIELDS = {"rope_parameters", "rope_scaling", "text_config", "attn_config", "architectures"}  # or checked apart
ONCE = ["llama_yarn", "gemma3", "gpt2", "opt", "phi3_longrope", "qwen2", "smollm3", "llama_dynamic", "llama3"]
ONCE += [
    "qwen3_moe_mixed",
    "mixtral",
    "granite_moe",
    "gpt_neox",
    "starcoder2",
    "cohere2",
    "stablelm",
    "gptj",
    "bloom",
    "mpt",
]
ONCE += ["falcon_grouped", "exaone4", "llama4_in_turn"]
WITH_STATES = ["mamba", "falcon_mamba", "mamba2", "jamba", "bamba", "granite_hybrid", "falcon_h1", "lfm2", "qwen3_next"]


@pytest.fixture(autouse=True)
def in_little_memory() -> Iterator[None]:
    device = CpuDevice()
    device.reset_peak_memory()
    before = device.peak_memory()
    yield
    assert device.peak_memory() - before < MEGABYTES << 20


def attempt(model: Path, what: str, load: Callable[[Path], None] = lies.load) -> CadenceError | None:
    """-> how it was refused; None = it loads"""
    start = time.process_time()
    try:
        load(model)
        return None
    except CadenceError as error:
        message = str(error)
        assert str(model) in message and "\n" not in message and len(message) < 1500, (what, message[:2000])
        assert (
            isinstance(error, ConfigError | WeightsError | ModelNotFoundError)
            or type(error).__name__ == "TokenizerError"
        )
        return error
    except BaseException as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    finally:
        assert time.process_time() - start < SECONDS, what


class Recorder(dict[str, Any]):
    """Notes which keys are asked for."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__(raw)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def fields_read(directory: Path) -> set[str]:
    found = hf.load_hf_config(ModelFiles("m", directory, None))
    raw = Recorder(found.raw)
    build = BuildContext(torch.float32, torch.device("cpu"), ReferenceOps(), MAX_LEN)
    model_class(found.architecture)(replace(found, raw=raw), build)
    return raw.asked - NO_FIELDS


def test_every_field_that_a_model_reads_has_a_type_and_a_range(tiny_model: Callable[[str], Path]) -> None:
    asked = set().union(*(fields_read(tiny_model(family)) for family in [*FAMILIES, *STATE_FAMILIES]))
    assert len(asked) > 30
    assert asked <= fields.FIELDS.keys()


@pytest.mark.parametrize("part", mostly_wide(range(lies.PARTS), [0]))
def test_lies_in_config_json(tiny_model: Callable[[str], Path], tmp_path: Path, part: int) -> None:
    """Every field, once, in a family that reads it."""
    check_lies(tiny_model, tmp_path, part, ONCE, least_done=45, least_refused=170)


@pytest.mark.parametrize("part", mostly_wide(range(lies.PARTS), []))
def test_lies_about_states(tiny_model: Callable[[str], Path], tmp_path: Path, part: int) -> None:
    check_lies(tiny_model, tmp_path, part, WITH_STATES, least_done=80, least_refused=300)


def check_lies(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    part: int,
    families: list[str],
    *,
    least_done: int,
    least_refused: int,
) -> None:
    """At least so many fields are lied about, and so many lies refused."""
    done: set[str] = set()
    refused = 0
    for family in families:
        source = tiny_model(family)
        raw = json.loads((source / "config.json").read_text())
        asked = fields_read(source) | {*fields.LENGTHS, "eos_token_id", "bos_token_id", "architectures", "rope_theta"}
        rope = next((name for name in fields.ROPES if isinstance(raw.get(name), dict)), "")
        asked |= {f"{rope}.{name}" for name in raw.get(rope, ())} | {rope} - {""}
        places = [tuple(name.split(".")) for name in sorted(asked - done)]
        done |= asked
        for number, where in enumerate(places):
            for lie in lies.lies_of(part, number):
                directory = lies.copy_with(source, tmp_path / "m", "config.json", lies.json_with(raw, where, lie))
                error = attempt(directory, f"{family} {where} = {str(lie)[:50]}")
                refused += error is not None
                kind = fields.FIELDS.get(where[0])
                if error is not None and kind is not None and len(where) == 1 and not _allowed(kind, lie):
                    assert isinstance(error, ModelFileError) and error.field == where[0], (where, error)
    assert len(done) > least_done and refused > least_refused


def _allowed(kind: fields.Kind, value: Any) -> bool:
    with suppress(ValueError, OverflowError):
        kind.read(value)
        return True
    return False


@pytest.mark.parametrize("kind", ["generation_config.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_lies_in_the_other_small_files(tiny_model: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    source = tiny_model("llama")
    names = {
        "generation_config.json": list(fields.GENERATION_FIELDS),
        "tokenizer_config.json": [
            "bos_token", "eos_token", "pad_token", "unk_token", "additional_special_tokens", "extra_special_tokens",
            "added_tokens_decoder", "chat_template", "model_max_length", "add_prefix_space", "add_bos_token",
            "clean_up_tokenization_spaces",
        ],
        "special_tokens_map.json": ["bos_token", "eos_token", "sep_token", "additional_special_tokens"],
    }  # fmt: skip
    known = source / kind
    raw = json.loads(known.read_text()) if known.exists() else {}
    inner = [{"1": lie} for lie in lies.LIES] + [{"1": {"content": lie}} for lie in lies.LIES]
    for name in names[kind]:
        for lie in [*lies.LIES, *(inner if name == "added_tokens_decoder" else [])]:
            directory = lies.copy_with(source, tmp_path / "m", kind, lies.json_with(raw, (name,), lie))
            attempt(directory, f"{name} = {str(lie)[:50]}", lies.load_text)


@pytest.mark.parametrize("part", mostly_wide(range(lies.PARTS), [0]))
def test_lies_in_tokenizer_json(tiny_model: Callable[[str], Path], tmp_path: Path, part: int) -> None:
    source = tiny_model("llama")
    raw = json.loads((source / "tokenizer.json").read_text())
    places = [(name,) for name in raw] + [("model", name) for name in raw["model"]]
    token = next(iter(raw["model"]["vocab"]))
    for number, where in enumerate([*places, ("model", "vocab", token)]):
        for lie in lies.lies_of(part, number):
            directory = lies.copy_with(source, tmp_path / "m", "tokenizer.json", lies.json_with(raw, where, lie))
            attempt(directory, f"{where} = {str(lie)[:50]}", lies.load_text)


def test_lies_in_a_safetensors_header(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny_model("llama")
    raw = (source / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    name = "model.norm.weight"
    shapes = [[lie] for lie in lies.LIES] + [[0, 2**63], [2**32, 2**32], [64, 1], [1] * 1000]
    for field, values in {"dtype": lies.LIES, "shape": lies.LIES + shapes, "data_offsets": lies.LIES + shapes}.items():
        for lie in values:
            text = lies.json_with(header, (name, field), lie)
            spoiled = len(text).to_bytes(8, "little") + text + raw[8 + size :]
            directory = lies.copy_with(source, tmp_path / "m", "model.safetensors", spoiled)
            attempt(directory, f"{field} = {str(lie)[:50]}")
    for length in (0, 1, size - 1, size + 1, len(raw), 2**40, 2**63, 2**64 - 1):
        spoiled = length.to_bytes(8, "little") + raw[8:]
        directory = lies.copy_with(source, tmp_path / "m", "model.safetensors", spoiled)
        assert attempt(directory, f"header of {length}") is not None


def test_damaged_files_and_things_in_their_place(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    source = make_tiny("llama", tmp_path / "sharded", sharded=True)
    names = sorted(path.name for path in source.iterdir() if "-of-" not in path.name or "-00002-" in path.name)
    assert {"model.safetensors.index.json", "config.json"} < set(names) and len(names) == 6
    for name in names:
        for damage, content in lies.damages((source / name).read_bytes()):
            directory = lies.copy_with(source, tmp_path / "m", name, content)
            error = attempt(directory, f"{name}: {damage}")
            assert error is not None or content.lstrip(b"\xef\xbb\xbf") == b"{}", (name, damage)
        for thing, _ in lies.replacements(Path()):
            directory = lies.fresh_copy(source, tmp_path / "replaced")
            (directory / name).unlink()
            dict(lies.replacements(directory / name))[thing]()
            optional = name in ("generation_config.json", "tokenizer_config.json") and thing.startswith("link to n")
            error = attempt(directory, f"{name}: {thing}")
            assert error is not None or optional or thing == "link to itself", (name, thing)


@pytest.mark.parametrize("part", mostly_wide(range(lies.PARTS), [0]))
def test_lies_in_gguf_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf", "Q8_0")
    keys = list(GGUFFile(path).metadata)
    keys += [f"llama.{name}" for name in ("attention.key_length", "rope.scaling.type", "rope.scaling.factor")]
    keys += ["llama.attention.sliding_window", "llama.expert_count", "split.count", "tokenizer.chat_template"]
    arrays = [torch.arange(3).numpy(), torch.zeros(0).numpy(), torch.tensor([float("nan")]).numpy()]
    for number, key in enumerate(keys):
        for lie in [*(value for value in lies.lies_of(part, number) if _fits_gguf(value)), *arrays]:

            def open_lying(where: Path, key: str = key, lie: Any = lie, **options: Any) -> GGUFFile:
                file = GGUFFile(where, **options)
                file.metadata[key] = lie
                return file

            monkeypatch.setattr(gguf, "GGUFFile", open_lying)
            attempt(path, f"{key} = {str(lie)[:50]}")


def _fits_gguf(value: Any) -> bool:
    """The format has neither null nor objects, and numbers of 64 bits."""
    return value is not None and not isinstance(value, dict) and not (isinstance(value, int) and value >= 2**64)


def test_duplicate_keys_are_read_as_everybody_reads_them(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    source = tiny_model("llama")
    text = (source / "config.json").read_text().rstrip().rstrip("}")
    directory = lies.copy_with(source, tmp_path / "m", "config.json", f'{text}, "hidden_size": 64}}'.encode())
    lies.load(directory)
    directory = lies.copy_with(source, tmp_path / "m", "config.json", f'{text}, "hidden_size": "64"}}'.encode())
    error = attempt(directory, "a second hidden_size")
    assert isinstance(error, ModelFileError) and error.field == "hidden_size"


def test_sizes_that_no_memory_holds_are_refused_before_anything_is_allocated(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    source = tiny_model("llama")
    raw = json.loads((source / "config.json").read_text())
    for changes in ({"hidden_size": 2**20}, {"vocab_size": 2**24, "hidden_size": 2**16}, {"intermediate_size": 2**24}):
        content = json.dumps(raw | changes | {"num_hidden_layers": 1000}).encode()
        directory = lies.copy_with(source, tmp_path / "m", "config.json", content)
        with pytest.raises(ModelFileError, match=r"config\.json: .*GiB of weights, but the device has"):
            lies.load(directory, "dummy")
    content = json.dumps(raw | {"max_position_embeddings": 2**31 - 1}).encode()
    directory = lies.copy_with(source, tmp_path / "m", "config.json", content)
    with pytest.raises(ConfigError, match=r"config\.json, takes .* GiB of tables"):
        lies.load(directory)
    with pytest.raises(ModelFileError, match="'num_hidden_layers' must be a whole number between 1 and 1024"):
        LLM(
            str(
                lies.copy_with(
                    source, tmp_path / "m", "config.json", lies.json_with(raw, ("num_hidden_layers",), 2**62)
                )
            )
        )


@pytest.mark.parametrize(
    ("command", "name"),
    mostly_wide_rows(
        [
            ("generate", "config.json"),
            ("generate", "tokenizer.json"),
            ("serve", "config.json"),
            ("serve", "model.safetensors"),
        ],
        [("generate", "tokenizer.json"), ("serve", "config.json")],
    ),
)
def test_the_shell_says_one_line_and_ends_with_status_1(
    tiny_model: Callable[[str], Path], tmp_path: Path, command: str, name: str
) -> None:
    source = tiny_model("llama")
    raw = json.loads((source / "config.json").read_text())
    sizes = lies.json_with(raw, ("hidden_size",), 10**12)
    spoiled = {"config.json": sizes, "tokenizer.json": b"[" * lies.DEEP, "model.safetensors": b"\xff" * 100}
    directory = lies.copy_with(source, tmp_path / "m", name, spoiled[name])
    words = {"generate": ["--model", str(directory), "hello"], "serve": [str(directory), "--port", "0"]}
    done = subprocess.run(
        [sys.executable, "-m", "cadence.entrypoints.cli.main", command, *words[command]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith(f"cadence {command}: ") and str(directory / name) in done.stderr, done.stderr


def test_nothing_true_is_refused(tiny_model: Callable[[str], Path]) -> None:
    for family in [*FAMILIES, *STATE_FAMILIES]:
        lies.load(tiny_model(family))
