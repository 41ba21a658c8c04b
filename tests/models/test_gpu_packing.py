"""What a GPU keeps of files and checkpoints: their own numbers, in no more bits than they have there."""

from __future__ import annotations

from tests.helpers.triton_mode import DEVICE, interpret, interpret_rows  # isort: skip - before triton

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.reference.ops import ReferenceOps
from cadence.kernels.triton.experts.expert_stacks import FewBitsStack
from cadence.kernels.triton.experts.experts import TritonExperts
from cadence.kernels.triton.lowbit.block_matrix import BlockMatrix
from cadence.kernels.triton.lowbit.few_bits import as_fp8
from cadence.kernels.triton.lowbit.few_bits_matrix import FewBitsMatrix, PickedMatrix, WideMatrix
from cadence.kernels.triton.lowbit.joined_matrix import JoinedMatrix
from cadence.kernels.triton.ops import TritonOps
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.experts import Experts, KernelExperts
from cadence.models.layers.joined import SummedWeight
from cadence.models.layers.weight import DenseWeight, KernelWeight, WeightHolder
from cadence.models.loader import load_model
from tests.helpers.quantized_writers import bnb_table
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.tiny_quantized import FORMS, make_quantized

pytestmark = pytest.mark.device

OPS = TritonOps(packs=True)
WIDE = ("W8A16 asymmetric",)  # what no kernel multiplies as it is
IN_BLOCKS = ("NVFP4", "MXFP4")


def load(path: Path, ops: Ops, quantization: str) -> DecoderLM:
    files = ModelFiles(str(path), path.parent if path.is_file() else path, path if path.is_file() else None)
    config = ModelConfig(files, load_hf_config(files), "float32", 128, 0, 20, "raw_logprobs")
    build = BuildContext(torch.float32, torch.device(DEVICE), ops, 128)
    return load_model(config, LoadConfig("auto", False, quantization), build)


def matrices(model: DecoderLM) -> dict[str, PackedMatrix]:
    held = {name: module for name, module in model.named_modules() if isinstance(module, WeightHolder)}
    found = {}
    for name, module in held.items():
        assert isinstance(module.weight, KernelWeight)
        found[name] = module.weight.matrix
    return found


def check_values(model: DecoderLM, plain: DecoderLM, error: float) -> None:
    for name, matrix in matrices(model).items():
        weight = plain.get_submodule(name).weight
        assert isinstance(weight, DenseWeight)
        some = min(matrix.rows, 24)
        torch.testing.assert_close(
            matrix.values(matrix.rows - some, some), weight.values[-some:], rtol=error, atol=1e-5
        )


KINDS = [("Q4_K", "Q6_K"), ("IQ2_XXS", ""), ("Q5_0", "Q8_0"), ("Q4_0", "Q4_K"), ("Q5_1", "")]


@pytest.mark.parametrize(("kind", "other"), interpret_rows(KINDS, KINDS[3:]))
def test_blocks_of_files(tmp_path: Path, kind: str, other: str) -> None:
    path = make_tiny_gguf(tmp_path / "tiny.gguf", kind, other)
    model, plain = load(path, OPS, "gguf"), load(path, ReferenceOps(), "none")
    check_values(model, plain, 1e-6)
    found = matrices(model)
    fused = next(matrix for name, matrix in found.items() if name.endswith("qkv"))
    assert isinstance(fused, JoinedMatrix if other else BlockMatrix)
    assert not [name for name, matrix in found.items() if isinstance(matrix, WideMatrix)]


SOME = ["W4A16 asymmetric", "W8A16 asymmetric", "NVFP4", "GPTQ 4 bits, by activation", "fp8 block 128", "nf4, twice"]


@pytest.mark.parametrize("form", interpret(FORMS, SOME))
def test_numbers_of_checkpoints(tmp_path: Path, form: str) -> None:
    path = make_quantized(form, tmp_path)
    model, plain = load(path, OPS, "checkpoint"), load(path, ReferenceOps(), "none")
    check_values(model, plain, 2**-8)  # the reference has them rounded to 16 bits
    own = WideMatrix if form in WIDE else BlockMatrix if form in IN_BLOCKS else FewBitsMatrix
    for name, matrix in matrices(model).items():
        if name.endswith("qkv"):
            assert isinstance(matrix, PickedMatrix if "by activation" in form else own), form


def test_codes_of_a_table_have_its_numbers_bit_for_bit() -> None:
    """Before they are rounded to the type of the model; parts of a projection may have tables of their own."""
    table, codes = bnb_table("nf4"), torch.arange(16, dtype=torch.uint8).repeat(8, 8)
    scales = torch.rand(8, 2, generator=torch.Generator().manual_seed(2))
    packer = OPS.packer("checkpoint", torch.bfloat16, torch.device(DEVICE))
    assert packer is not None
    part = packer.pack_numbers(ScaledNumbers(codes, scales, bits=4, table=table))
    expected = (table[codes.int()].view(8, 2, 64) * scales.unsqueeze(2)).view(8, 128)
    assert torch.equal(packer.stack([part, part]).values(8, 8).cpu(), expected)
    other = packer.pack_numbers(ScaledNumbers(codes, scales, bits=4, table=table.neg()))
    both = packer.stack([part, other])
    assert isinstance(both, JoinedMatrix) and torch.equal(both.values(8, 8).cpu(), -expected)
    for held in (ScaledNumbers(codes[:, :96], scales[:, :1].expand(-1, 3), bits=4, table=table),
                 ScaledNumbers(codes, scales, bits=4, table=table / 2)):  # fmt: skip
        assert packer.pack_numbers(held) is None, "groups of 32, and a table of another kind"


@pytest.mark.parametrize("gelu", [False, True])
def test_the_gate_before_a_sum_over_ranks_is_part_of_the_product(gelu: bool) -> None:
    """Two ranks with half of the columns each: what they add up has the bits that a gate and a product have."""
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=generator) for shape in ((128, 512), (5, 1024), (128,))]
    values, x, bias = made[0].to(DEVICE), made[1].to(DEVICE, torch.bfloat16), made[2].to(DEVICE)
    ctx: Any = SimpleNamespace(ops=OPS)
    parts, apart = [], []
    for rank in range(2):
        own = slice(256 * rank, 256 * rank + 256)
        base = KernelWeight(FewBitsMatrix(as_fp8(values[:, own].contiguous()), torch.bfloat16, False, False))
        ranks: Any = SimpleNamespace(rank=rank, all_reduce=lambda part: part)
        weight, pair = SummedWeight(base, ranks), torch.cat([x[:, :512][:, own], x[:, 512:][:, own]], dim=1)
        assert weight.takes_gate(5)
        parts.append(weight.gated(pair, bias, gelu, ctx, terms=True))
        apart.append(weight.linear(OPS.gelu_tanh_mul(pair) if gelu else OPS.silu_mul(pair), bias, ctx))
    assert parts[0].shape == (5, 128) and torch.equal(torch.stack(parts), torch.stack(apart))
    gate, up = x.float().chunk(2, dim=1)
    inner = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else torch.nn.functional.silu(gate)
    expected = (inner * up) @ values.T + bias
    assert (sum(parts) - expected).norm() < 0.06 * expected.norm(), "the bias is added once"


@pytest.mark.parametrize(
    ("form", "quantization"),
    [("W4A16 group 128", "checkpoint"), ("fp8 block 128", "checkpoint"), ("nf4", "checkpoint"), ("AWQ", "int8")],
)
def test_experts_of_checkpoints(tmp_path: Path, form: str, quantization: str) -> None:
    """They keep their bits, and multiply by the numbers of the checkpoint."""
    path = make_quantized(form, tmp_path, "qwen3_moe", num_hidden_layers=1, num_experts=3, num_experts_per_tok=2)
    model, plain = load(path, OPS, quantization), load(path, ReferenceOps(), "none")
    own, others = (next(m for m in each.modules() if isinstance(m, Experts)) for each in (model, plain))
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    ids, shares = torch.tensor([[0, 1], [1, 2], [2, 0]], dtype=torch.int32), torch.tensor([[0.7, 0.3]] * 3)
    routes, ctx = (ids.to(DEVICE), shares.to(DEVICE)), ForwardContext(ReferenceOps(), None, [])  # type: ignore[arg-type]
    found, expected = (each.product.product(x, routes, False, ctx) for each in (own, others))
    assert (found - expected).norm() < (0.02 if quantization == "int8" else 5e-3) * expected.norm()
    assert isinstance(own.product, KernelExperts)
    packed = own.product.packed
    assert isinstance(packed, TritonExperts) and all(isinstance(stack, FewBitsStack) for stack in packed.stacks)
