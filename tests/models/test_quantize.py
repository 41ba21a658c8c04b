"""Checkpoints that `quantize_checkpoint` writes, as compressed-tensors, transformers and the loader here see them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.errors import CadenceError, ConfigError
from cadence.models.loader.checkpoint import open_checkpoint
from cadence.models.quantize import checkpoint_writer
from cadence.models.quantize.checkpoint import QuantizeOptions, quantize_checkpoint
from cadence.models.quantize.checkpoint_writer import CheckpointWriter
from cadence.models.quantize.formats import FORMATS, find_format
from cadence.models.quantize.layer_pass import LayerPass
from cadence.text.hf_directory import load_tokenizer
from cadence.text.load import tokenizer_for
from tests.helpers import oracle
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.tiny_models import VOCAB, make_tiny
from tests.helpers.tiny_plain import make_plain
from tests.helpers.tiny_quantized import make_quantized
from tests.helpers.wide import mostly_wide_rows

pytestmark = pytest.mark.device

PROJECTIONS = 7  # of a layer
WINDOWS = torch.randint(3, VOCAB, (6, 64), dtype=torch.int32, generator=torch.Generator().manual_seed(5))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_plain(tmp_path_factory.mktemp("plain") / "tiny")


def files_at(directory: Path) -> ModelFiles:
    return ModelFiles(str(directory), directory, None)


def quantize(plain: Path, output: Path, name: str, **options: Any) -> Path:
    quantize_checkpoint(files_at(plain), output, QuantizeOptions(find_format(name), **options))
    return output


@pytest.fixture(scope="module")
def rounded(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint in a format, without calibration, made once."""
    return cache(lambda name: quantize(plain, tmp_path_factory.mktemp("rounded") / "out", name))


def our_values(directory: Path) -> dict[str, torch.Tensor]:
    source, _ = open_checkpoint(files_at(directory), load_hf_config(files_at(directory)))
    return {name: source.load(name) for name in source.names()}


# Calibrated, one of whole numbers and one of floats.
READ = [(name, calibrated) for calibrated in (False, True) for name in FORMATS]
ALWAYS = [(name, calibrated) for name, calibrated in READ if not calibrated or name in ("W4A16_ASYM", "NVFP4A16")]


def library_of(section: dict[str, Any]) -> tuple[Any, Any]:
    """What compressed-tensors reads such a checkpoint with: (compressor, scheme). Its import takes seconds."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    weights = QuantizationArgs(**section["config_groups"]["group_0"]["weights"])
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    return BaseCompressor.get_value_from_registry(section["format"]), scheme


@pytest.mark.parametrize(("name", "calibrated"), mostly_wide_rows(READ, ALWAYS))
def test_the_library_reads_the_same_values(
    plain: Path, rounded: Callable[[str], Path], tmp_path: Path, name: str, calibrated: bool
) -> None:
    output = quantize(plain, tmp_path / "out", name, windows=WINDOWS) if calibrated else rounded(name)
    section = json.loads((output / "config.json").read_text())["quantization_config"]
    compressor, scheme = library_of(section)
    stored, original = load_file(output / "model.safetensors"), load_file(plain / "model.safetensors")
    ours = our_values(output)
    assert ours.keys() == original.keys()
    quantised = [key for key in original if key.endswith("_proj.weight")]
    assert len(quantised) == 2 * PROJECTIONS
    for key in quantised:
        module = key.removesuffix("weight")
        state = {part.removeprefix(module): each for part, each in stored.items() if part.startswith(module)}
        theirs = compressor.decompress(state, scheme)["weight"]
        assert torch.equal(theirs.float(), ours[key].float()), key
        assert (theirs.float() - original[key].float()).norm() < 0.2 * original[key].float().norm()
    for key in original.keys() - set(quantised):
        assert torch.equal(ours[key], original[key])


@pytest.mark.parametrize("name", FORMATS)
def test_the_library_would_write_the_same(plain: Path, rounded: Callable[[str], Path], name: str) -> None:
    """With the scales that were chosen here, every weight is rounded to where its library rounds it."""
    output = rounded(name)
    section = json.loads((output / "config.json").read_text())["quantization_config"]
    compressor, scheme = library_of(section)
    stored, original = load_file(output / "model.safetensors"), load_file(plain / "model.safetensors")
    for key in (key for key in original if key.endswith("_proj.weight")):
        module = key.removesuffix("weight")
        state = {part.removeprefix(module): each for part, each in stored.items() if part.startswith(module)}
        read = compressor.decompress(dict(state), scheme)
        given = {
            part: read[part] for part in ("weight_scale", "weight_zero_point", "weight_global_scale") if part in read
        }
        if state["weight_scale"].dtype is torch.bfloat16:
            given["weight_scale"] = given["weight_scale"].float()  # else its own divisions would be rounded
        again = compressor.compress({"weight": original[key].float(), **given}, scheme)
        mine = compressor.decompress(dict(state), scheme)["weight"].float()
        again["weight_scale"] = state["weight_scale"]
        theirs = compressor.decompress(again, scheme)["weight"].float()
        assert torch.equal(mine, theirs), key


@pytest.mark.parametrize("name", FORMATS)
def test_the_configuration_is_the_library_s_own(name: str) -> None:
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

    group = find_format(name).section(["lm_head"])["config_groups"]["group_0"]
    ours = QuantizationScheme(**{key: value for key, value in group.items() if key != "format"})
    theirs = preset_name_to_scheme(name, ["Linear"])
    for part in ("weights", "input_activations"):
        mine, other = getattr(ours, part), getattr(theirs, part)
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine.model_dump(exclude={"observer"}) == other.model_dump(exclude={"observer"})


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")  # on purpose: its matrices are to be numbers
@pytest.mark.parametrize("name", FORMATS)
def test_transformers_loads_it(rounded: Callable[[str], Path], name: str) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import CompressedTensorsConfig

    output = rounded(name)
    config = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(output, quantization_config=config)
    found, ours = dict(model.named_parameters()), our_values(output)
    for key, values in ours.items():
        assert torch.equal(found[key].float(), values.float()), key


def test_calibration_brings_it_nearer(tmp_path: Path) -> None:
    """Of texts like those that it was calibrated with, though not of these. Vectors of tokens have few directions, as
    those of trained models do: where all are alike there is nothing to learn."""
    plain = make_plain(tmp_path / "plain")
    tensors, pick = load_file(plain / "model.safetensors"), torch.Generator().manual_seed(1)
    few = torch.randn(VOCAB, 12, generator=pick) @ torch.randn(12, 128, generator=pick)
    tensors["model.embed_tokens.weight"] = (0.1 * few).bfloat16()
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    reference = oracle.load_oracle(plain)
    seen = torch.randint(3, VOCAB, (16, 64), dtype=torch.int32, generator=pick)
    texts = torch.randint(3, VOCAB, (4, 64), generator=pick).tolist()
    errors = {}
    for name, windows in {"rounded": None, "calibrated": seen}.items():
        values = our_values(quantize(plain, tmp_path / name, "W4A16", windows=windows))
        model = oracle.load_oracle(plain)
        model.load_state_dict({key: each.float() for key, each in values.items()})
        gaps = [oracle.logprobs(model, text) - oracle.logprobs(reference, text) for text in texts]
        errors[name] = float(torch.cat(gaps).square().mean())
    assert errors["calibrated"] < 0.8 * errors["rounded"], errors


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "opt"])
def test_a_text_passes_layer_by_layer_as_it_passes_the_model(tmp_path: Path, family: str) -> None:
    directory = make_tiny(family, tmp_path / family)
    files = files_at(directory)
    source, where = open_checkpoint(files, load_hf_config(files))
    run = LayerPass(load_hf_config(files), source, where, WINDOWS[:2])
    for index in range(run.num_layers):
        layer = run.open(index)
        run.observe(layer)
        run.advance(layer)
    model = oracle.load_oracle(directory)
    caught: list[torch.Tensor] = []
    inner = model.model.decoder if family == "opt" else model.model
    inner.layers[-1].register_forward_hook(
        lambda module, args, out: caught.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.inference_mode():
        model(WINDOWS[:2].long())
    for index, (x, residual) in enumerate(run._stream):
        assert torch.allclose(x + residual, caught[0][index], atol=1e-4)


def test_a_gguf_file_becomes_a_folder(tmp_path: Path) -> None:
    """With the tokenizer that the file describes."""
    from transformers import AutoTokenizer

    path = make_tiny_gguf(tmp_path / "tiny.gguf", "Q8_0")
    files = ModelFiles(str(path), tmp_path, path, {"temperature": 0.2})
    quantize_checkpoint(files, tmp_path / "out", QuantizeOptions(find_format("W8A8"), windows=WINDOWS[:2] % 256))
    source, _ = open_checkpoint(files, load_hf_config(files))
    found = our_values(tmp_path / "out")
    assert found.keys() == set(source.names())
    for name in source.names():
        assert (found[name].float() - source.load(name)).norm() < 0.02 * source.load(name).norm()
    texts = ["The sky is blue, 1234 times.", "  def f(x):\n    return x"]
    ours, theirs = load_tokenizer(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in texts:
        assert tokenizer_for(files).encode(text) == ours.encode(text) == theirs.encode(text)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["temperature"] == 0.2


def test_large_checkpoints_are_written_in_parts(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = our_values(quantize(plain, tmp_path / "whole", "W8A16"))
    monkeypatch.setattr(CheckpointWriter.__init__, "__defaults__", (50_000,))
    output = quantize(plain, tmp_path / "parts", "W8A16")
    names = sorted(path.name for path in output.glob("*.safetensors"))
    assert len(names) > 2 and names[0] == f"model-00001-of-{len(names):05d}.safetensors"
    found = our_values(output)
    assert found.keys() == whole.keys() and all(torch.equal(found[name], whole[name]) for name in whole)


def test_a_crash_leaves_no_checkpoint(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint_writer, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        quantize(plain, tmp_path / "out", "W4A16")
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_out_keeps_its_values(plain: Path, tmp_path: Path) -> None:
    output = quantize(
        plain, tmp_path / "out", "W4A16", ignore=("lm_head", "re:.*down_proj", "model.layers.1.self_attn.o_proj")
    )
    section = json.loads((output / "config.json").read_text())["quantization_config"]
    left = ["lm_head", *(f"model.layers.{i}.mlp.down_proj" for i in (0, 1)), "model.layers.1.self_attn.o_proj"]
    assert section["ignore"] == sorted(left)
    original, found = load_file(plain / "model.safetensors"), load_file(output / "model.safetensors")
    assert all(torch.equal(found[f"{name}.weight"], original[f"{name}.weight"]) for name in left)
    assert "model.layers.0.self_attn.o_proj.weight_packed" in found


def test_a_head_that_drafts_keeps_its_values(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "drafts")
    config = json.loads((plain / "config.json").read_text())
    (tmp_path / "drafts" / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    tensors = load_file(plain / "model.safetensors")
    head = torch.ones(128, 256, dtype=torch.bfloat16)
    tensors["model.mtp_layers.0.input_proj.weight"] = head
    save_file(tensors, tmp_path / "drafts" / "model.safetensors", {"format": "pt"})
    output = quantize(tmp_path / "drafts", tmp_path / "out", "W8A8")
    left_out = json.loads((output / "config.json").read_text())["quantization_config"]["ignore"]
    assert left_out == ["lm_head", "model.mtp_layers.0.input_proj"]
    assert torch.equal(load_file(output / "model.safetensors")["model.mtp_layers.0.input_proj.weight"], head)


def test_a_head_may_be_quantised(plain: Path, tmp_path: Path) -> None:
    output = quantize(plain, tmp_path / "out", "W8A16", ignore=())
    assert "lm_head.weight_packed" in load_file(output / "model.safetensors")
    assert json.loads((output / "config.json").read_text())["quantization_config"]["ignore"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ignore": ("lm_haed",)}, "names no matrix"),
        ({"ignore": ("re:(",)}, "no regular expression"),
        ({"ignore": ("model.layers.0.self_attn.q_proj",)}, "multiplied as one"),
        ({"ignore": ("re:.*",)}, "nothing is left"),
    ],
)
def test_what_cannot_be_left_out_is_said(plain: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quantize(plain, tmp_path / "out", "W4A16", **options)
    assert list(tmp_path.iterdir()) == []


def test_models_that_are_refused(plain: Path, tmp_path: Path) -> None:
    once = quantize(plain, tmp_path / "once", "W4A16")
    with pytest.raises(ConfigError, match="quantised already"):
        quantize(once, tmp_path / "twice", "W4A16")
    with pytest.raises(ConfigError, match="not an empty folder"):
        quantize(plain, once, "W4A16")
    with pytest.raises(ConfigError, match="transposed"):
        quantize(make_tiny("gpt2", tmp_path / "gpt2"), tmp_path / "out", "W4A16")
    small = make_plain(tmp_path / "small", hidden_size=96)
    with pytest.raises(ConfigError, match=r"groups of 128 do not divide the 96 columns.*--group-size 32 would"):
        options = QuantizeOptions(find_format("W4A16", 128))
        quantize_checkpoint(files_at(small), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_are_quantised_each_by_the_tokens_that_it_gets(tmp_path: Path, family: str) -> None:
    """Those that get none are what they are without calibration; routers keep their values, and are named."""
    whole = make_quantized("fp8 block 128", tmp_path / "made", family, num_hidden_layers=1).parent / "plain"
    form, some = find_format("W4A16", 32), WINDOWS[:1, :2]
    made = [
        quantize_checkpoint(files_at(whole), tmp_path / name, QuantizeOptions(form, dtype="float32", windows=windows))
        for name, windows in (("rounded", None), ("calibrated", some))
    ]
    original, rounded, calibrated = (
        our_values(whole),
        our_values(tmp_path / "rounded"),
        our_values(tmp_path / "calibrated"),
    )
    experts = sorted({name.rsplit(".", 2)[0] for name in original if ".experts." in name})
    same = [
        e for e in experts if all(torch.equal(rounded[n], calibrated[n]) for n in original if n.startswith(f"{e}."))
    ]
    assert 0 < made[1].num_unseen == len(same) < len(experts) and made[0].num_unseen == 0
    routers = {name for name in original if name.endswith(".gate.weight")}
    assert routers and all(torch.equal(original[name], calibrated[name]) for name in routers)
    assert {name.removesuffix(".weight") for name in routers} | {"lm_head"} == set(made[1].left_out)
    for name in (name for name in original if ".experts." in name):
        assert 0 < (original[name] - calibrated[name]).norm() < 0.2 * original[name].norm()
    check_library(tmp_path / "calibrated", [name for name in original if ".experts." in name], calibrated)


def check_library(directory: Path, names: list[str], values: dict[str, torch.Tensor]) -> None:
    """compressed-tensors reads the same."""
    section = json.loads((directory / "config.json").read_text())["quantization_config"]
    compressor, scheme = library_of(section)
    stored = load_file(directory / "model.safetensors")
    for name in names:
        module = name.removesuffix("weight")
        state = {part.removeprefix(module): each for part, each in stored.items() if part.startswith(module)}
        assert torch.equal(compressor.decompress(state, scheme)["weight"].float(), values[name].float()), name


def test_weights_that_are_no_numbers_are_refused(plain: Path, tmp_path: Path) -> None:
    make_plain(tmp_path / "bad")
    tensors = load_file(plain / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = torch.nan
    save_file(tensors, tmp_path / "bad" / "model.safetensors", {"format": "pt"})
    for windows in (None, WINDOWS):
        with pytest.raises(CadenceError, match="finite"):
            quantize(tmp_path / "bad", tmp_path / "out", "W4A16", windows=windows)
    assert not (tmp_path / "out").exists()


def test_formats_are_known_by_several_names() -> None:
    assert find_format("fp8").name == "FP8_DYNAMIC" and find_format("w8a8-int8").name == "W8A8"
    assert find_format("w4a16", 32).group == 32
    with pytest.raises(ConfigError, match="known are W4A16"):
        find_format("W3A16")
    with pytest.raises(ConfigError, match="32 or 64 or 128 or 256"):
        find_format("W4A16", 48)
    with pytest.raises(ConfigError, match="its own groups"):
        find_format("NVFP4A16", 32)
