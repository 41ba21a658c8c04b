"""The C kernels against the reference, and what they promise beyond it: a row's bits depend on that row alone."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cadence.core.errors import ConfigError
from cadence.device.calls import Calls
from cadence.device.cpu import CpuDevice
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.weights import PackedRows
from cadence.kernels.cpu.runtime import build
from cadence.kernels.cpu.runtime.build import BuildError, load_library
from cadence.kernels.interface.ops import DrawParams
from cadence.kernels.reference import compose
from cadence.kernels.reference.torch_ops import TorchOps
from cadence.kernels.select import select_ops
from tests.helpers import kernel_checks as checks
from tests.helpers import kernel_checks_fused as fused
from tests.helpers.kernel_cases import AttentionCase, make_inputs, only
from tests.helpers.packing import pack_f32

pytestmark = pytest.mark.device

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPS = CpuOps(Calls(2))


@st.composite
def attention_cases(draw: st.DrawFn) -> AttentionCase:
    sequence = st.tuples(st.sampled_from([0, 1, 15, 16, 63, 64, 200]), st.sampled_from([1, 1, 2, 17, 70]))
    kv_heads = draw(st.sampled_from([1, 2]))
    return AttentionCase(
        sequences=tuple(draw(st.lists(sequence, min_size=1, max_size=5))),
        num_kv_heads=kv_heads,
        num_heads=kv_heads * draw(st.sampled_from([1, 3, 4])),
        head_dim=draw(st.sampled_from([16, 20, 64, 80])),
        block_size=draw(st.sampled_from([1, 4, 16, 32])),
        window=draw(st.sampled_from([0, 1, 7, 100])),
        softcap=draw(st.sampled_from([0.0, 30.0])),
        dtype=draw(st.sampled_from(DTYPES)),
        num_groups=draw(st.sampled_from([1, 2])),
        seed=draw(st.integers(0, 100)),
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(attention_cases())
def test_attention_matches_the_reference(case: AttentionCase) -> None:
    checks.check_attention(OPS, case, "cpu")


@pytest.mark.parametrize("head_dim", [96, 128, 256])
def test_attention_over_long_histories(head_dim: int) -> None:
    checks.check_attention(OPS, AttentionCase(((1500, 1), (600, 40)), 4, 1, head_dim), "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [4, 33, 576])
def test_elementwise_ops_match_the_reference(width: int, dtype: torch.dtype) -> None:
    checks.check_norms(OPS, width, dtype, "cpu")
    checks.check_gates(OPS, width, dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (20, 20), (32, 12)])
def test_rope_and_write_kv_match_the_reference(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    checks.check_rope(OPS, head_dim, rotary_dim, dtype, "cpu")
    checks.check_write_kv(OPS, head_dim, 8, dtype, "cpu")


@pytest.mark.parametrize("vocab_size", [1, 5, 1000, 49153])
def test_gumbel_noise_equals_the_reference_bit_for_bit(vocab_size: int) -> None:
    checks.check_gumbel(OPS, vocab_size, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_joined_ops_match_what_they_join(dtype: torch.dtype) -> None:
    for shape in ((1, 33, 70), (5, 7, 64)):
        fused.check_fused_linear(OPS, shape, dtype, "cpu")
    for dims in ((9, 3, 20, 20), (4, 2, 32, 12), (2, 2, 16, 0)):
        fused.check_rope_write_kv(OPS, dims, dtype, "cpu")
    for lines, vocab in ((1, 5), (6, 3001)):
        fused.check_draw(OPS, lines, vocab, dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_from_a_part_of_the_vocabulary(dtype: torch.dtype) -> None:
    """A few lines are cut into parts that threads share, many are not."""
    for ops in (OPS, checks.REFERENCE):
        for lines, sizes in ((1, (3, 5)), (1, (9000, 10_000)), (10, (2999, 3001)), (40, (700, 49_153))):
            fused.check_mapped_draw(ops, lines, sizes, dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_picked_rows(dtype: torch.dtype) -> None:
    fused.check_pick(OPS, dtype, "cpu")


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_draws_overlook_no_token_that_noise_could_lift(scale: float) -> None:
    generator = torch.Generator().manual_seed(5)
    lines = torch.arange(64)
    logits = torch.randn((64, 3000), generator=generator) * scale
    params = DrawParams(torch.rand(64, generator=generator) + 0.1, lines * 7, torch.ones(64, dtype=torch.int32))
    for ours, plain in zip(
        OPS.draw(logits, lines, lines, params), compose.draw(OPS, logits, lines, lines, params), strict=True
    ):
        assert torch.equal(ours, plain)


def every_finite(dtype: torch.dtype) -> torch.Tensor:
    """Every finite number of a type of two bytes [n, 64]."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    values = values[torch.isfinite(values)]
    return values[: len(values) // 64 * 64].view(-1, 64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_conversions_are_exact(dtype: torch.dtype) -> None:
    values = every_finite(dtype)
    halved = torch.full_like(values, 2.0**-9)  # sums that must be rounded, ties included
    for added in (torch.zeros_like(values), halved):
        _, total = OPS.add_rms_norm(values, added, torch.ones(64), 1e-6)
        exact = values + added
        # bfloat16 has the range of float32, in which sums are made: a processor may take what is subnormal there for 0
        subnormal = exact.float().abs() < torch.finfo(torch.float32).smallest_normal
        assert torch.equal(total[~subnormal], exact[~subnormal])
        kept = torch.equal(total[subnormal], exact[subnormal])
        assert kept or torch.equal(total[subnormal], torch.zeros_like(exact[subnormal]))


@pytest.mark.parametrize("window", [0, 90])
@pytest.mark.parametrize("heads", [(3, 1), (8, 2), (3, 3)])
def test_attention_bits_do_not_depend_on_the_batch_or_the_chunks(heads: tuple[int, int], window: int) -> None:
    sequences = ((0, 130), (700, 1), (1030, 37), (511, 2), (0, 1), (64, 1))
    case = AttentionCase(sequences, *heads, head_dim=32, window=window)
    inputs = make_inputs(case)
    together = OPS.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)
    for index, (_, new) in enumerate(sequences):
        start = int(inputs.batch.query_start[index])
        for chunk in {new, 50, 13, 1} if new > 1 else {1}:
            for skip in range(0, new, chunk):
                part = only(inputs, index, skip, min(chunk, new - skip))
                alone = OPS.paged_attention(part.q, part.kv, part.batch, 0, case.shape)
                assert torch.equal(alone, together[start + skip : start + skip + alone.shape[0]])


def test_linear_and_norm_bits_do_not_depend_on_the_batch() -> None:
    x, gain = torch.randn(67, 1100), torch.randn(1100)
    weight = PackedRows([pack_f32(torch.randn(45, 1100))])
    linear, norm = OPS.packed.linear(x, weight, None), OPS.rms_norm(x, gain, 1e-5)
    for rows in (slice(0, 1), slice(5, 7), slice(30, 33), slice(60, 67), slice(1, 40)):
        assert torch.equal(OPS.packed.linear(x[rows], weight, None), linear[rows])
        assert torch.equal(OPS.rms_norm(x[rows], gain, 1e-5), norm[rows])


def test_attention_does_not_depend_on_the_number_of_threads() -> None:
    case = AttentionCase(((1500, 1), (3, 20)), 6, 2)
    inputs = make_inputs(case)
    results = []
    for count in (1, 2, 5):
        ops = CpuOps(Calls(count))
        results.append(ops.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape))
    assert all(torch.equal(result, results[0]) for result in results)


def test_strided_queries_and_caches_of_a_larger_pool() -> None:
    case = AttentionCase(((5, 3), (40, 1)), 4, 2, 64)
    inputs = make_inputs(case)
    packed = torch.cat([inputs.q, torch.randn(4, 4, 64)], dim=1)
    pool = torch.stack(inputs.kv, dim=1)  # keys and values of a block side by side
    strided = OPS.paged_attention(packed[:, :4], (pool[:, 0], pool[:, 1]), inputs.batch, 0, case.shape)
    assert torch.equal(strided, OPS.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape))


def test_nan_in_one_sequence_stays_there() -> None:
    case = AttentionCase(((5, 3), (40, 1)), 4, 2, 64)
    inputs = make_inputs(case)
    q = inputs.q.clone()
    q[3] = torch.nan
    out = OPS.paged_attention(q, inputs.kv, inputs.batch, 0, case.shape)
    assert out[3].isnan().all()
    assert torch.isfinite(out[:3]).all()


@pytest.fixture
def one_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """-> an empty cache, for a library that is compiled at once."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "one.c").write_text('__attribute__((visibility("default"))) int one(void) { return 1; }')
    monkeypatch.setattr(build, "_SOURCES", tmp_path / "sources")
    monkeypatch.setenv("CADENCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def test_a_second_load_takes_the_file_from_the_cache(one_source: Path) -> None:
    first = load_library()._name
    stamp = Path(first).stat().st_mtime_ns
    assert load_library()._name == first
    assert Path(first).stat().st_mtime_ns == stamp
    assert [path.suffix for path in one_source.iterdir()] == [".so"]


def test_the_cache_is_for_its_user_alone(one_source: Path) -> None:
    assert Path(load_library()._name).parent == one_source
    assert stat.S_IMODE(one_source.stat().st_mode) == 0o700
    one_source.chmod(0o755)
    assert Path(load_library()._name).parent == one_source
    assert stat.S_IMODE(one_source.stat().st_mode) == 0o700


def test_what_others_may_have_put_into_the_cache_is_not_run(one_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Path(load_library()._name)
    one_source.chmod(0o777)
    assert load_library()._name != str(planted)
    one_source.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: planted.stat().st_uid + 1)
    assert load_library()._name != str(planted)


def test_compiling_is_said_once(one_source: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_library()
    assert capfd.readouterr().err.startswith("compiling the kernels for this CPU with ")
    load_library()
    assert capfd.readouterr().err == ""


def test_a_cache_that_cannot_be_written_is_said_and_leaves_nothing_behind(
    one_source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = one_source.parent.parent / "file"
    file.touch()
    monkeypatch.setenv("CADENCE_CACHE", str(file / "cache"))
    where = Path(load_library()._name).parent
    said, compiling = capfd.readouterr().err.splitlines()
    assert said.startswith(f"{file}/cache/kernels cannot be written (Not a directory): ") and "CADENCE_CACHE" in said
    assert compiling.startswith("compiling ") and not where.exists()


def test_several_processes_may_compile_at_once(one_source: Path) -> None:
    load = f"import pathlib, cadence.kernels.cpu.runtime.build as b; b._SOURCES = pathlib.Path({str(build._SOURCES)!r})"
    command = [sys.executable, "-c", f"{load}; print(b.load_library().one())"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in processes] == ["1"] * 4
    assert [path.suffix for path in one_source.iterdir()] == [".so"]


def test_without_a_compiler_the_reference_runs_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CADENCE_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    with caplog.at_level(logging.WARNING):
        assert select_ops(CpuDevice()).name == "reference"
    (line,) = [record.getMessage() for record in caplog.records]
    assert "no-such-compiler, is not there" in line and "times slower" in line and "apt install gcc" in line
    with pytest.raises((BuildError, ConfigError), match="no-such-compiler"):
        select_ops(CpuDevice(), "cpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [5, 64, 131])
def test_sums_of_tokens_are_exact(dtype: torch.dtype, width: int) -> None:
    """To the bit those of the reference: also halves between two multiples, numbers too large and no numbers."""
    draw = torch.Generator().manual_seed(width)
    x = torch.randn(70, width, generator=draw) * torch.logspace(-9, 9, 70)[:, None]
    x[:, 1] = (torch.arange(70) - 35 + 0.5) * 2.0**-30
    x[3, 2], x[11, 0], x[12, 4] = torch.nan, torch.inf, -torch.inf
    wide = torch.zeros(70, 2 * width, dtype=dtype)
    wide[:, :width] = x.to(dtype)
    segments = torch.randint(0, 6, (70,), generator=draw)
    for rows in (wide[:, :width], wide[:, :width].contiguous()):
        found, expected = OPS.token_sums(rows, segments, 7), TorchOps().token_sums(rows, segments, 7)
        assert torch.equal(found, expected) and found[:, -1].sum() >= 3 and not found[6].any()
