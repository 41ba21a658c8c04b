"""Matrices on a CPU are packed as they are stored, once, and what was read of the file leaves memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.errors import ConfigError, WeightsError
from cadence.device.calls import Calls
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.products import CpuMatrix
from cadence.kernels.cpu.packed.weights import Kind
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.layers.weight import DenseWeight, KernelWeight, WeightHolder
from cadence.models.loader import load_model
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from tests.helpers.packing import dequantize, multiplies_halves
from tests.helpers.random_blocks import READ
from tests.helpers.tiny_gguf import BLOCKS, make_tiny_gguf
from tests.helpers.tiny_models import make_tiny

pytestmark = pytest.mark.device

NARROW = Kind.HALF if multiplies_halves() else Kind.BF16  # what a matrix becomes with dtype bfloat16
BECOMES = {  # GGUF types that have no blocks of their own here
    **{kind: Kind.T4_F for kind in READ if kind.startswith(("Q3", "NV", "IQ1", "IQ2", "IQ3"))},
    **dict.fromkeys(("TQ1_0", "TQ2_0"), Kind.Q4_0),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@pytest.fixture(scope="module")
def ops() -> CpuOps:
    return CpuOps(Calls(2))


def load(path: Path, ops: Ops, dtype: str = "float32", quantization: str = "none", fmt: str = "auto") -> DecoderLM:
    files = ModelFiles(str(path), path.parent if path.is_file() else path, path if path.is_file() else None)
    config = ModelConfig(files, load_hf_config(files), dtype, 128, 0, 20, "raw_logprobs")
    build = BuildContext(DTYPES[dtype], torch.device("cpu"), ops, 128)
    return load_model(config, LoadConfig(fmt, False, quantization), build)


def matrix(module: WeightHolder) -> CpuMatrix:
    weight = module.weight
    assert isinstance(weight, KernelWeight)
    assert isinstance(weight.matrix, CpuMatrix)
    return weight.matrix


def kinds(module: WeightHolder) -> set[Kind]:
    return {part.kind for part in matrix(module).packed.weights}


def values(module: WeightHolder) -> torch.Tensor:
    return torch.cat([dequantize(part) for part in matrix(module).packed.weights])


@pytest.mark.parametrize(
    ("stored", "dtype", "kind"),
    [
        ("float32", "float32", Kind.F32),
        ("bfloat16", "float32", Kind.BF16),
        ("float16", "float32", Kind.F16),
        ("bfloat16", "bfloat16", NARROW),
        ("float32", "bfloat16", NARROW),
        ("float16", "float16", Kind.F16),
    ],
)
def test_weights_keep_the_precision_they_are_stored_in(
    tmp_path: Path, ops: CpuOps, stored: str, dtype: str, kind: Kind
) -> None:
    directory = make_tiny("qwen2", tmp_path, dtype=DTYPES[stored])
    model = load(directory, ops, dtype)
    tensors = load_file(directory / "model.safetensors")
    layer = model.layers[1]
    assert kinds(model.embed) == kinds(model.lm_head) == kinds(layer.attn.qkv) == kinds(layer.mlp.down) == {kind}
    qkv = values(layer.attn.qkv)
    names = [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"]
    exact = torch.cat([tensors[name] for name in names])
    assert torch.equal(qkv, (exact if kind in (Kind.F32, Kind.F16) else exact.bfloat16()).float())
    assert layer.attn.qkv.bias.dtype is torch.float32  # added before the product is rounded
    assert all(not parameter.is_meta for parameter in model.parameters())


def test_a_lower_instruction_set_keeps_bfloat16(tmp_path: Path) -> None:
    directory = make_tiny("llama", tmp_path, dtype=torch.bfloat16)
    assert kinds(load(directory, CpuOps(Calls(1), "portable"), "bfloat16").embed) == {Kind.BF16}


def test_transposed_matrices_and_position_tables(tiny_model: Callable[[str], Path], ops: CpuOps) -> None:
    model = load(tiny_model("gpt2"), ops)
    tensors = load_file(tiny_model("gpt2") / "model.safetensors")
    up = values(model.layers[0].mlp.up)
    assert torch.equal(up, tensors["transformer.h.0.mlp.c_fc.weight"].T)
    assert torch.equal(model.embed.places.weight, tensors["transformer.wpe.weight"])


def test_a_tied_matrix_is_packed_once(tiny_model: Callable[[str], Path], ops: CpuOps) -> None:
    for quantization in ("none", "int4"):
        tied = load(tiny_model("qwen3"), ops, quantization=quantization)
        assert tied.embed.weight is tied.lm_head.weight
    assert kinds(tied.embed) == {Kind.Q8_0}  # embeddings and head keep 8 bits
    assert kinds(tied.layers[0].attn.out) == {Kind.Q4_1}
    apart = load(tiny_model("llama"), ops)
    assert apart.embed.weight is not apart.lm_head.weight


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_stay_what_they_are(tmp_path: Path, ops: CpuOps, kind: str) -> None:
    path = make_tiny_gguf(tmp_path / "model.gguf", kind)
    packed, widened = load(path, ops, quantization="gguf"), load(path, ReferenceOps(), quantization="gguf")
    for ours, plain in ((packed.embed, widened.embed), (packed.layers[1].attn.qkv, widened.layers[1].attn.qkv)):
        assert kinds(ours) == {Kind[kind]}
        assert torch.equal(values(ours), plain.weight.values)
    assert kinds(load(path, ops, quantization="none").embed) == {Kind.F32}
    assert kinds(load(path, ops, "bfloat16", quantization="none").embed) == {NARROW}


def test_dummy_weights_are_packed_too(tiny_model: Callable[[str], Path], ops: CpuOps) -> None:
    first, second = (load(tiny_model("qwen3"), ops, fmt="dummy") for _ in range(2))
    plain = load(tiny_model("qwen3"), ReferenceOps(), fmt="dummy")
    for model in (first, second):
        assert torch.equal(values(model.embed), plain.embed.weight.values)
        assert model.embed.weight is model.lm_head.weight
    assert kinds(load(tiny_model("llama"), ops, quantization="int8", fmt="dummy").layers[0].mlp.gate_up) == {Kind.Q8_0}


def test_quantising_needs_the_kernels(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="kernels of its own"):
        load(tiny_model("llama"), ReferenceOps(), quantization="int8")


def held(path: Path) -> int:
    """Kilobytes of a mapped file in this process's memory."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's account of memory")
def test_what_was_read_leaves_memory(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.arange(500_000 + i, dtype=torch.float32) for i in range(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    source = SafetensorsWeights(tmp_path)
    assert held(tmp_path / "model.safetensors") < 100
    for name, tensor in tensors.items():
        assert torch.equal(source.load(name), tensor)
        assert held(tmp_path / "model.safetensors") < 2500  # of 8,000: one tensor and what was mapped around it
        source.release(name)
    assert held(tmp_path / "model.safetensors") < 300
    assert torch.equal(source.load("t1"), tensors["t1"])  # and can be read again


def test_a_type_that_is_no_float_is_named(tiny_model: Callable[[str], Path], tmp_path: Path, ops: CpuOps) -> None:
    shutil.copy(tiny_model("llama") / "config.json", tmp_path)
    tensors = load_file(tiny_model("llama") / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    save_file(tensors | {name: tensors[name].to(torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"{name}.*I8"):
        load(tmp_path, ops)


def test_columns_in_an_order_of_their_own(ops: CpuOps) -> None:
    """What is multiplied, looked up and shown is the matrix with its columns in order."""
    pick = torch.Generator().manual_seed(4)
    values, order = torch.randn(40, 96, generator=pick), torch.randperm(96, generator=pick)
    packer = ops.packer("none", torch.float32, torch.device("cpu"))
    assert packer is not None
    plain = packer.stack([packer.pack_values(values, True)])
    ordered = packer.stack([packer.pack_values(values[:, order], True)], order)
    x, ids = torch.randn(5, 96, generator=pick), torch.tensor([3, 39, 0], dtype=torch.int32)
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.allclose(ordered.linear(x.to(kind), None), plain.linear(x.to(kind), None), atol=1e-4, rtol=1e-2)
    assert torch.equal(ordered.lookup(ids, 1.0), plain.lookup(ids, 1.0))
    assert torch.equal(ordered.values(7, 9), values[7:16])
    for bad in (order[:-1], torch.zeros(96, dtype=torch.int64), order - 1):
        with pytest.raises(WeightsError, match="order of 96 columns"):
            packer.stack([packer.pack_values(values, True)], bad)


@pytest.mark.parametrize("kind", [kind for kind in READ if kind not in (*BLOCKS, "F32", "F16", "BF16")])
def test_every_gguf_type_loads(tmp_path: Path, ops: CpuOps, kind: str) -> None:
    """As it is, or in another kind, or dequantised."""
    path = make_tiny_gguf(tmp_path / "tiny.gguf", kind)
    model, plain = load(path, ops, quantization="gguf"), load(path, ReferenceOps())
    for name, module in model.named_modules():
        if isinstance(module, WeightHolder):
            weight = plain.get_submodule(name).weight
            assert isinstance(weight, DenseWeight)
            assert torch.equal(values(module), weight.values)
            assert kinds(module) == {BECOMES[kind] if kind in BECOMES else Kind[kind]}
