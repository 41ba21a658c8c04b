"""The ops that join others, held to the same ops one by one on the CPU."""

from __future__ import annotations

import torch

from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import DrawParams, Ops, Rotation
from cadence.models.interface.model_proposer import DraftVocabulary
from tests.helpers.kernel_cases import spread
from tests.helpers.kernel_checks import REFERENCE, TOLERANCE, assert_close


def _random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def assert_near(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """Relative to the whole: a sum of products near zero has no digits of its own."""
    assert ours.dtype == dtype
    assert ours.shape == exact.shape
    wrong = (ours.cpu().double() - exact).norm() / exact.norm()
    assert wrong < TOLERANCE[dtype], f"relative error {wrong:.2e}"


def check_fused_linear(ops: Ops, shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    """shape = (rows of x, outputs, width). The weight of the norm is wider than x."""
    rows, outputs, width = shape
    generator = torch.Generator().manual_seed(outputs)
    x, residual = (_random(generator, rows, width).to(dtype) for _ in range(2))
    norm, eps = 1 + _random(generator, width) / 4, 1e-5
    weight = (_random(generator, 2 * outputs, width) / width**0.5).to(dtype)
    total = x + residual
    normed = REFERENCE.rms_norm(total.double(), norm, eps).double()
    x, residual, norm = x.to(device), residual.to(device), norm.to(device)
    for bias in (None, _random(generator, 2 * outputs).to(dtype)):
        plain = normed @ weight.double().T + (0.0 if bias is None else bias.double())
        there = weight.to(device), None if bias is None else bias.to(device)
        ours, kept = ops.add_norm_linear((x, residual), (norm, eps), *there)
        assert torch.equal(kept.cpu(), total)
        assert_near(ours, plain, dtype)
        for gelu, gate in ((False, REFERENCE.silu_mul), (True, REFERENCE.gelu_tanh_mul)):
            ours, kept = ops.add_norm_gated((x, residual), (norm, eps), *there, gelu)
            assert torch.equal(kept.cpu(), total)
            assert_near(ours, gate(plain).double(), dtype)
        alone = x.cpu().double() @ weight.double().T + (0.0 if bias is None else bias.double())
        assert_near(ops.linear(x, *there), alone, dtype)


def one_token_each(positions: torch.Tensor, slots: torch.Tensor) -> AttentionBatch:
    """Sequences of which only the newest token matters: all their other keys are in block 0."""
    count, longest = positions.shape[0], int(positions.max()) + 1
    rows = torch.arange(count, dtype=torch.int32, device=positions.device)
    starts = torch.arange(count + 1, dtype=torch.int32, device=positions.device)
    table = torch.zeros((count, longest), dtype=torch.int32, device=positions.device)
    return AttentionBatch(rows, starts, (positions + 1).int(), (table,), (slots,), count, 1)


def check_rope_write_kv(ops: Ops, dims: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> None:
    """dims = (query heads, kv heads, head_dim, rotary_dim)."""
    q_heads, k_heads, dim, rotary = dims
    generator = torch.Generator().manual_seed(sum(dims))
    angles = _random(generator, 50, rotary // 2) * 3
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions, slots = torch.tensor([0, 49, 7, 7, 3]), torch.randperm(7 * 8, generator=generator)[:5]
    packed = _random(generator, 5, (q_heads + 2 * k_heads), dim).to(dtype)
    weights = tuple(_random(generator, dim) for _ in range(2))

    def done(target: Ops, norms: tuple[torch.Tensor, ...], where: str) -> list[torch.Tensor]:
        q, k, v = packed.clone().to(where).split([q_heads, k_heads, k_heads], dim=1)
        empty = torch.full((7, k_heads, 8, dim), 7.0, dtype=dtype, device=where)
        caches = (spread(empty, 0), spread(empty, 3 * dim))
        rotation = Rotation(cos_sin.to(where), tuple(weight.to(where) for weight in norms), 1e-6)
        batch = one_token_each(positions.to(where), slots.to(where))
        q = target.rope_write_kv((q, k, v), positions.to(where), rotation, caches, batch, 0)
        return [q, *caches]

    for norms in ((), weights, tuple(weight.to(dtype) for weight in weights)):
        for ours, reference in zip(done(ops, norms, device), done(REFERENCE, norms, "cpu"), strict=True):
            assert_close(ours, reference)


def check_draw(ops: Ops, lines: int, vocab: int, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = (_random(generator, lines, vocab) * 2).to(dtype)
    logits[:, vocab // 2 :] = logits[:, : vocab - vocab // 2].clone()  # every value twice, the highest too
    if lines >= 5:
        logits[0] = float("-inf")
        logits[1] = 0.0
        logits[2, vocab // 2] = float("nan")
        logits[-1, vocab // 3] = float("inf")
    before = logits.clone()
    rows = torch.randperm(lines + 3, generator=generator)[:lines].to(torch.int32)
    positions = torch.randint(0, 2**34, (lines,), generator=generator)
    for random in (torch.arange(lines) % 2, 1 - torch.arange(lines) % 2):
        table = torch.zeros((lines + 3, 6), dtype=torch.int32)  # columns of several kinds in one table
        table.view(torch.float32)[:, 4] = torch.rand(lines + 3, generator=generator) * 2 + 0.05
        table.view(torch.float32)[rows[random == 0].long(), 4] = 1.0
        table.view(torch.int64)[:, 1] = torch.randint(-(2**62), 2**62, (lines + 3,), generator=generator)
        table[rows.long(), 5] = random.to(torch.int32)
        wanted, peaks = REFERENCE.draw(logits, rows, positions, _draw_params(table))
        there = logits.to(device)
        strided = torch.stack([rows.long(), positions], dim=1).to(device)
        ours, found = ops.draw(there, strided[:, 0], strided[:, 1], _draw_params(table.to(device)))
        assert (ours.dtype, found.dtype) == (torch.int32, torch.float32)
        assert torch.equal(ours.cpu(), wanted)
        torch.testing.assert_close(found.cpu(), peaks, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(there.cpu().view(torch.uint8), before.view(torch.uint8))


def check_mapped_draw(ops: Ops, lines: int, sizes: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    """sizes = (columns, vocabulary). Columns that have ids are drawn from as if they lay among all ids."""
    columns, vocab = sizes
    generator = torch.Generator().manual_seed(columns)
    vocabulary = DraftVocabulary(torch.randperm(vocab, generator=generator)[:columns], same=False)
    logits = (_random(generator, lines, columns + 5) * 2).to(dtype)[:, :columns]
    logits[:, columns // 2 :] = logits[:, : columns - columns // 2].clone()  # every value twice, the highest too
    if lines >= 8:
        logits[:2] = float("-inf")
        logits[2:4, columns // 2 :] = float("nan")
        logits[4:6, columns // 3 :] = float("inf")
        logits[6:8, : columns // 2] = float("-inf")
    rows = torch.randperm(lines, generator=generator)
    positions = torch.randint(0, 2**34, (lines,), generator=generator)
    random = torch.arange(lines, dtype=torch.int32) % 2
    temperatures = torch.where(random > 0, torch.rand(lines, generator=generator) * 2 + 0.05, 1.0)
    seeds = torch.randint(-(2**62), 2**62, (lines,), generator=generator)
    params = DrawParams(*[column[rows.argsort()].to(device) for column in (temperatures, seeds, random)])
    there, ids = logits.to(device), vocabulary.target_ids.int().to(device)
    wide = vocabulary.widen(logits, vocab).to(device)
    wanted, peaks = ops.draw(wide, rows.to(device), positions.to(device), params)
    ours, found = ops.draw(there, rows.to(device), positions.to(device), params, ids)
    assert (ours.dtype, found.dtype) == (torch.int32, torch.float32)
    assert torch.equal(ours, wanted)
    torch.testing.assert_close(found, peaks, rtol=0, atol=0, equal_nan=True)


def check_pick(ops: Ops, dtype: torch.dtype, device: str) -> None:
    x = torch.arange(9 * 4 * 35, device=device).to(dtype).view(9, 4, 35)
    at = torch.tensor([8, 0, 3, 3], device=device)
    for part in (x, x[:, 1:3], x[:, 2], x[1:, 0], x.view(9, -1)[:, :77], x[..., 3], x[:, 0, 0], x.transpose(1, 2)):
        places = at.clamp(max=len(part) - 1)
        picked = ops.pick(part, places)
        assert torch.equal(picked, part[places]) and picked.is_contiguous()


def _draw_params(table: torch.Tensor) -> DrawParams:
    return DrawParams(table.view(torch.float32)[:, 4], table.view(torch.int64)[:, 1], table[:, 5])


def check_rows_stand_alone(ops: Ops, shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    """Bits of a row do not depend on how many rows there are, nor on where it stands among them."""
    rows, outputs, width = shape
    generator = torch.Generator().manual_seed(rows)
    x, residual = (_random(generator, rows, width).to(device, dtype) for _ in range(2))
    norm = _random(generator, width).to(device, dtype)
    weight, bias = _random(generator, 2 * outputs, width).to(device, dtype), _random(generator, 2 * outputs)
    bias = bias.to(device, dtype)

    def all_ops(part: slice) -> list[torch.Tensor]:
        a, b = x[part], residual[part]
        return [
            ops.linear(a, weight, bias),
            *ops.add_norm_linear((a, b), (norm, 1e-5), weight, None),
            *ops.add_norm_gated((a, b), (norm, 1e-5), weight, bias, False),
            ops.rms_norm(a, norm, 1e-5),
        ]

    together = all_ops(slice(0, rows))
    for size in sorted({1, 2, 3, 16, 17, 63, 64, 65, 128, 129, 257, rows} & set(range(rows + 1))):
        for start in {0, (rows - size) // 2, rows - size}:
            part = slice(start, start + size)
            for alone, whole in zip(all_ops(part), together, strict=True):
                assert torch.equal(alone, whole[part]), f"{size} rows from {start}"
