"""`cadence models` says what a model would become, without loading it, and what it says is so."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.config import reference
from cadence.config.hf import load_hf_config
from cadence.config.implemented import implemented
from cadence.config.reference import find_model
from cadence.entrypoints.cli.main import main
from cadence.entrypoints.cli.models.outlook import outlook
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.build import BuildContext
from cadence.models.loader.plausible import without_memory
from cadence.models.loader.slots import slots
from tests.helpers.tiny_models import FAMILIES, MAX_LEN
from tests.helpers.tiny_others import RUNNING, make_other
from tests.helpers.wide import DIFFERENT, mostly_wide

pytestmark = pytest.mark.engine

LENGTHS = {"llama_linear": 2 * MAX_LEN, "llama_dynamic": 2 * MAX_LEN, "phi3_longrope": 2 * MAX_LEN, "bloom": 2048}


def check(directory: Path, code: str, length: int = MAX_LEN) -> None:
    """Against the model itself, in shapes alone."""
    files = find_model(str(directory))
    found = outlook(files, code, False)
    hf = implemented(load_hf_config(files), code, False)
    build = BuildContext(torch.float32, torch.device("meta"), ReferenceOps(), 1)
    model = without_memory(hf, build, MAX_LEN)
    layers = model.kv_layers()
    assert (found.code, found.why_not, found.dtype, found.max_model_len) == (code, "", "float32", length)
    assert found.kv_layers == len(layers)
    assert found.kv_bytes_per_token == sum(2 * 4 * layer.num_kv_heads * layer.head_dim for layer in layers)
    assert found.stored.num_parameters == sum(slot.tensor.numel() for slot in slots(model))
    assert found.stored.num_bytes == (directory / "model.safetensors").stat().st_size


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, (*DIFFERENT, "jamba")))
def test_models_by_hand(tiny_model: Callable[[str], Path], family: str) -> None:
    check(tiny_model(family), "cadence", LENGTHS.get(family, MAX_LEN))


@pytest.mark.parametrize("family", mostly_wide(RUNNING, ("gpt_bigcode", "deepseek_v2")))
def test_models_through_transformers(tmp_path: Path, family: str) -> None:
    check(make_other(family, tmp_path), "transformers")


def test_a_folder_as_text_and_as_json(tiny_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tiny_model("llama"))
    assert main(["models", folder]) == 0
    said = capsys.readouterr().out
    assert "by hand (cadence.models.llama:LlamaForCausalLM)" in said and "1.0 KiB a token in 4 layers" in said
    assert main(["models", folder, "--json", "--model-impl", "transformers"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["code"], found["where"], found["runs"], found["kv_bytes_per_token"]) == (
        "transformers", "llama", True, 1024,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"architectures": ["XyzzyForCausalLM"]}, "'XyzzyForCausalLM' is not supported"),
        ({"architectures": ["MptForCausalLM"]}, "its attention is its own"),
        (
            {"architectures": ["XyzzyForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling.Xyzzy"}},
            "runs with trust_remote_code alone",
        ),
    ],
)
def test_why_a_model_would_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if config["architectures"] == ["MptForCausalLM"]:
        flags = ["--model-impl", "transformers"]
    else:
        flags = []
    assert main(["models", str(tmp_path), *flags]) == 1
    assert said in capsys.readouterr().out


def test_a_hub_id_is_described_without_its_weights(
    tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    asked: list[list[str]] = []

    def snapshot(repo: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        if local_files_only:
            raise OSError("not in the cache")
        asked.append(allow_patterns)
        (tmp_path / "config.json").write_text((tiny_model("llama") / "config.json").read_text())
        return str(tmp_path)

    hub = types.SimpleNamespace(
        snapshot_download=snapshot,
        get_safetensors_metadata=lambda repo: types.SimpleNamespace(parameter_count={"BF16": 1_500_000_000}),
    )
    monkeypatch.setattr(reference, "_hub_client", lambda repo: hub)
    assert main(["models", "some/one", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stored"]["num_bytes"] == 3_000_000_000
    assert not any("*.safetensors" in patterns for patterns in asked)


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "LlamaForCausalLM" in found["by_hand"] and "llama" in found["gguf"]
    assert "ApertusForCausalLM" in found["through_transformers"] and found["transformers"]
    assert not set(found["by_hand"]) & set(found["through_transformers"])
    assert main(["models"]) == 0
    assert f"through transformers {found['transformers']}" in capsys.readouterr().out


def test_neither_torch_nor_transformers_is_imported(tiny_model: Callable[[str], Path]) -> None:
    program = (
        "import sys\nfrom cadence.entrypoints.cli.main import main\n"
        "assert main(['models', sys.argv[1], '--model-impl', 'transformers']) == 0\nassert main(['models']) == 0\n"
        "bad = {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)\nassert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tiny_model("llama"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
