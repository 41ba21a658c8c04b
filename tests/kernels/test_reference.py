"""The reference itself: against torch's dense attention, published Philox vectors, and what noise must look like."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from cadence.core.errors import ConfigError
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.attention_batch import AttentionShape, Sees
from cadence.kernels.reference.gumbel import gumbel_noise, philox
from cadence.kernels.select import select_ops
from tests.helpers.kernel_cases import AttentionCase, make_inputs
from tests.helpers.kernel_checks import REFERENCE

pytestmark = pytest.mark.device


SEEN = [(0, 0, 0), (6, 0, 0), (0, 5, 0), (6, 40, 0)]  # window, reach, chunk


@pytest.mark.parametrize(
    ("window", "reach", "chunk", "sees"),
    [*((*around, sees) for around in SEEN for sees in Sees), (0, 5, 9, Sees.CAUSAL)],  # chunks are of causal attention
)
def test_attention_is_dense_attention_read_through_the_block_table(
    window: int, reach: int, chunk: int, sees: Sees
) -> None:
    case = AttentionCase(
        ((11, 9), (0, 5), (33, 1)),
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        block_size=4,
        window=window,
        sees=sees,
        reach=reach,
        chunk=chunk,
    )
    inputs = make_inputs(case)
    out = REFERENCE.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
    starts = inputs.batch.query_start.tolist()
    for i, (cached, new) in enumerate(case.sequences):
        row, length = int(inputs.batch.rows[i]), cached + new
        keys, values = (
            torch.stack([cache[inputs.batch.block_tables[0][row, p // 4], :, p % 4] for p in range(length)], dim=1)
            for cache in inputs.kv
        )
        pos, key = torch.arange(cached, length)[:, None], torch.arange(length)[None, :]
        seen = (key <= pos) | (sees is Sees.BOTH_WAYS)
        if window:
            seen = seen & ((key - pos).abs() < window)
        if chunk:
            seen = seen & (key // chunk == pos // chunk)
        mask = torch.zeros(6, new, length).masked_fill(~seen, -torch.inf)
        for q_at, k_at in product(range(new), range(length)) if reach else ():
            distance = max(min(k_at - (cached + q_at), reach - 1), 1 - reach)
            mask[:, q_at, k_at] += case.shape.bias.table[:, reach - 1 + distance]
        q = inputs.q[starts[i] : starts[i + 1]].transpose(0, 1)
        dense = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(out[starts[i] : starts[i + 1]], dense.transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_a_chunk_is_neither_beside_a_window_nor_of_queries_that_see_both_ways() -> None:
    with pytest.raises(ValueError, match="a chunk of 9 tokens beside a window of 6"):
        AttentionShape(num_heads=1, num_kv_heads=1, head_dim=4, scale=1.0, window=6, chunk=9)
    case = AttentionCase(((0, 2),), num_heads=1, num_kv_heads=1, head_dim=4, chunk=9, sees=Sees.BOTH_WAYS)
    inputs = make_inputs(case)
    with pytest.raises(ValueError, match="see both ways, and chunks of 9 tokens"):
        REFERENCE.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)


def test_softcap_bounds_the_logits() -> None:
    case = AttentionCase(((0, 2),), num_heads=1, num_kv_heads=1, head_dim=4, softcap=1e-6)
    inputs = make_inputs(case)
    out = REFERENCE.paged_attention(inputs.q * 100, inputs.kv, inputs.batch, 0, case.shape)
    block = int(inputs.batch.block_tables[0][inputs.batch.rows[0], 0])
    torch.testing.assert_close(out[1, 0], inputs.kv[1][block, 0, :2].mean(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_gives_the_published_words(word: int, expected: tuple[int, ...]) -> None:
    words = torch.tensor([word])
    assert tuple(int(w) for w in philox([words] * 4, (words, words))) == expected


def test_noise_has_the_gumbel_distribution() -> None:
    noise = gumbel_noise(torch.arange(20), torch.arange(20) * 3, 50_000).double().flatten()
    n = len(noise)
    assert abs(noise.mean() - 0.5772156649) < 5 * math.sqrt(math.pi**2 / 6 / n)
    assert abs(noise.var() - math.pi**2 / 6) < 0.01
    cdf = torch.exp(-torch.exp(-noise.sort().values))
    assert (cdf - (torch.arange(n) + 0.5) / n).abs().max() < 1.95 / math.sqrt(n)  # Kolmogorov-Smirnov at 0.1 %


@pytest.mark.parametrize("neighbour", ["seed", "position", "token", "high seed", "swapped"])
def test_neighbouring_inputs_give_unrelated_noise(neighbour: str) -> None:
    seed, position, vocab = 1234, 77, 200_000
    other_seed, other_position, shift = {
        "seed": (seed + 1, position, 0),
        "position": (seed, position + 1, 0),
        "token": (seed, position, 1),
        "high seed": (seed + 2**32, position, 0),
        "swapped": (position, seed, 0),
    }[neighbour]
    noise = gumbel_noise(torch.tensor([seed, other_seed]), torch.tensor([position, other_position]), vocab).double()
    a, b = noise[0, : vocab - shift], noise[1, shift:]
    correlation = torch.corrcoef(torch.stack([a, b]))[0, 1]
    assert abs(correlation) < 4.5 / math.sqrt(vocab)


def test_noise_of_a_token_does_not_depend_on_the_vocabulary_or_the_batch() -> None:
    seeds, positions = torch.tensor([5, 6, 7]), torch.tensor([1, 2, 3])
    together = gumbel_noise(seeds, positions, 1003)
    for i in range(3):
        alone = gumbel_noise(seeds[i : i + 1], positions[i : i + 1], 90)
        assert torch.equal(together[i, :90], alone[0])


def test_sampling_with_the_noise_follows_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    draws = (logits + gumbel_noise(torch.full((40_000,), 3), torch.arange(40_000), 5)).argmax(dim=-1)
    frequency = torch.bincount(draws, minlength=5) / 40_000
    torch.testing.assert_close(frequency, logits.softmax(-1), rtol=0, atol=0.01)


def test_select_refuses_unknown_and_unfit_kernels() -> None:
    assert select_ops(CpuDevice(), "reference").name == "reference"
    with pytest.raises(ConfigError, match="turbo"):
        select_ops(CpuDevice(), "turbo")
    with pytest.raises(ConfigError, match="triton"):
        select_ops(CpuDevice(), "triton")


def test_masks_are_bits_of_words() -> None:
    """Token t is bit t % 32 of word t // 32."""
    logits = torch.zeros((3, 40))
    masks = torch.zeros((2, 2), dtype=torch.int32)
    masks[1, 0], masks[1, 1] = -(2**31) + 5, 128
    REFERENCE.apply_token_mask(logits, masks, torch.tensor([1, -1, 0], dtype=torch.int32))
    assert logits[0].isfinite().nonzero().flatten().tolist() == [0, 2, 31, 39]
    assert logits[1].isfinite().all() and not logits[2].isfinite().any()
