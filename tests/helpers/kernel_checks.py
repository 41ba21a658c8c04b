"""What every implementation of the ops is held to: the reference, on the same inputs, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.speech_lines import NO_TIMES, SpeechLines, WrittenTokens
from cadence.kernels.reference.kv_rows import MOST, unpack_rows
from cadence.kernels.reference.ops import ReferenceOps
from tests.helpers.kernel_cases import AttentionCase, make_inputs, spread

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
REFERENCE = ReferenceOps()


def assert_close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert ours.dtype == reference.dtype
    assert ours.shape == reference.shape
    tolerance = TOLERANCE[reference.dtype]
    torch.testing.assert_close(ours.cpu().float(), reference.cpu().float(), rtol=tolerance, atol=tolerance)


def check_attention(ops: Ops, case: AttentionCase, device: str) -> None:
    inputs, here = make_inputs(replace(case, turned=False)), make_inputs(case, device)
    kv = inputs.kv
    if case.turned and case.cache_dtype in MOST:  # a GPU leaves queries whole
        kv = (unpack_rows(kv[0], case.head_dim), unpack_rows(kv[1], case.head_dim))
    for group in range(case.num_groups):
        reference = REFERENCE.paged_attention(inputs.q, kv, inputs.batch, group, case.shape)
        assert_close(ops.paged_attention(here.q, here.kv, here.batch, group, case.shape_on(device)), reference)


def check_norms(ops: Ops, width: int, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(width)
    x = torch.randn((5, width), generator=generator).to(dtype)
    residual = torch.randn((5, width), generator=generator).to(dtype)
    weight = torch.randn(width, generator=generator)  # float32: wider than x
    reference = REFERENCE.add_rms_norm(x, residual, weight, 1e-5)
    ours = ops.add_rms_norm(x.to(device), residual.to(device), weight.to(device), 1e-5)
    for a, b in zip(ours, reference, strict=True):
        assert_close(a, b)
    heads = torch.randn((3, 7, width), generator=generator).to(dtype)[:, 2:6]  # a view of some heads of a projection
    narrow = weight.to(dtype)
    assert_close(ops.rms_norm(heads.to(device), narrow.to(device), 1e-6), REFERENCE.rms_norm(heads, narrow, 1e-6))


def check_gates(ops: Ops, width: int, dtype: torch.dtype, device: str) -> None:
    x = (torch.randn((3, 2 * width), generator=torch.Generator().manual_seed(width)) * 4).to(dtype)
    x[0, :4] = torch.tensor([-200.0, 200.0, 0.0, 1e-3])
    assert_close(ops.silu_mul(x.to(device)), REFERENCE.silu_mul(x))
    assert_close(ops.gelu_tanh_mul(x.to(device)), REFERENCE.gelu_tanh_mul(x))


def check_rope(ops: Ops, head_dim: int, rotary_dim: int, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    angles = torch.randn((50, rotary_dim // 2), generator=generator) * 3
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.tensor([0, 49, 7, 7])
    packed = torch.randn((4, 5 * head_dim), generator=generator).to(dtype)  # q, k, v of one projection

    def rotated(target: Ops, where: str) -> torch.Tensor:
        heads = packed.clone().to(where).view(4, 5, head_dim)
        target.rope(heads[:, :3], heads[:, 3:4], positions.to(where), cos_sin.to(where))
        return heads

    reference = rotated(REFERENCE, "cpu")
    assert_close(rotated(ops, device), reference)
    assert torch.equal(reference[:, 4], packed.view(4, 5, head_dim)[:, 4])
    assert torch.equal(rotated(ops, device)[:, 4].cpu(), packed.view(4, 5, head_dim)[:, 4])


def check_write_kv(ops: Ops, head_dim: int, block_size: int, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    packed = torch.randn((6, 9, head_dim), generator=generator).to(dtype)
    k, v = packed[:, 2:5], packed[:, 5:8]
    slots = torch.randperm(7 * block_size, generator=generator)[:6]

    def written(target: Ops, where: str) -> Sequence[torch.Tensor]:
        empty = torch.zeros((7, 3, block_size, head_dim), dtype=dtype, device=where)
        caches = spread(empty, 0), spread(empty, 3 * head_dim)
        target.write_kv((k.to(where), v.to(where)), caches, slots.to(where))
        return caches

    for a, b in zip(written(ops, device), written(REFERENCE, "cpu"), strict=True):
        assert torch.equal(a.cpu(), b)


def check_gumbel(ops: Ops, vocab_size: int, device: str) -> None:
    seeds = torch.tensor([0, 1, -1, 2**62 + 12345, 7])
    positions = torch.tensor([0, 0, 17, 131071, 2**33 + 5])
    reference = REFERENCE.gumbel_noise(seeds, positions, vocab_size)
    strided = torch.stack([seeds, positions], dim=1).to(device)  # columns of one table
    ours = ops.gumbel_noise(strided[:, 0], strided[:, 1], vocab_size)
    assert torch.equal(ours.cpu(), reference)


def check_linear(ops: Ops, shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    rows, out_dim, in_dim = shape
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (torch.randn(s, generator=generator) for s in ((rows, in_dim), (out_dim, in_dim), (out_dim,)))
    exact = x.double() @ weight.double().T
    x, weight, bias = x.to(device, dtype), weight.to(device, dtype), bias.to(device, dtype)
    scale = TOLERANCE[dtype] * in_dim**0.5
    for ours, wanted in ((ops.linear(x, weight, None), exact), (ops.linear(x, weight, bias), exact + bias.cpu())):
        torch.testing.assert_close(ours.cpu().double(), wanted, rtol=0, atol=scale)


def check_token_mask(ops: Ops, vocab: int, dtype: torch.dtype, device: str) -> None:
    """Also of lines that are a part of a wider table, which the mask must leave alone."""
    generator = torch.Generator().manual_seed(vocab)
    words = (vocab + 31) // 32
    masks = torch.randint(-(2**31), 2**31, (5, words), generator=generator).to(torch.int32)
    masks[0], masks[1] = -1, 0
    mask_of_line = torch.tensor([3, -1, 0, 1, 3, 2, 4], dtype=torch.int32)
    table = torch.randn((7, vocab + 3), generator=generator).to(dtype)
    for line, bad in ((0, "nan"), (3, "nan"), (4, "inf"), (5, "-inf"), (6, "-nan")):  # line 3 may get no token
        table[line, vocab // 2] = float(bad)
    wanted, there = table.clone(), table.to(device)
    REFERENCE.apply_token_mask(wanted[:, :vocab], masks, mask_of_line)
    ops.apply_token_mask(there[:, :vocab], masks.to(device), mask_of_line.to(device))
    assert torch.equal(there.cpu().view(torch.int16), wanted.view(torch.int16))
    assert torch.equal(wanted[1].view(torch.int16), table[1].view(torch.int16))
    assert wanted[3, vocab // 2].isnan() and wanted[4, vocab // 2] == float("inf")  # a fault of the model is not hidden


def check_speech_rules(ops: Ops, vocab: int, device: str) -> None:
    """Lines at every place of a transcript: its beginning, in a pair of times, after it, in text; and without rules."""
    generator = torch.Generator().manual_seed(vocab)
    first, end, lines = vocab - 30, vocab - 40, 64
    rows = torch.randperm(lines, generator=generator)
    prompt_lens = torch.randint(1, 5, (lines,), generator=generator)
    lengths = prompt_lens + torch.randint(0, 6, (lines,), generator=generator)
    is_time = torch.rand((lines, 12), generator=generator) < 0.5
    times = torch.randint(first, vocab, (lines, 12), generator=generator)
    texts = torch.randint(0, end, (lines, 12), generator=generator)
    written = WrittenTokens(torch.where(is_time, times, texts).int(), rows, lengths, prompt_lens)
    limits = torch.tensor([first, first - 1, end, first + 5]).repeat(lines, 1)
    limits[::7, 0], limits[1::7, 3] = NO_TIMES, 2**31
    pairs = torch.stack([torch.arange(lines), torch.arange(lines) % end], 1)
    own = SpeechLines(pairs, pairs.roll(1, 0).contiguous(), limits, 12)
    table = torch.randn((lines, vocab + 3), generator=generator) * 4
    table[::3, first:] += 6.0  # times win over text, where they may come
    wanted, there = table.clone(), table.to(device)
    REFERENCE.apply_speech_rules(wanted[:, :vocab], own, written)
    ops.apply_speech_rules(there[:, :vocab], _on(own, device), _on(written, device))
    assert torch.equal(there.cpu(), wanted)
    assert not wanted[:, :vocab].isinf().all(dim=1).any()


def _on(parts: Any, device: str) -> Any:
    """The same dataclass, with its tensors there."""
    given = ((each.name, getattr(parts, each.name)) for each in fields(parts))
    return replace(parts, **{name: value.to(device) for name, value in given if isinstance(value, torch.Tensor)})
