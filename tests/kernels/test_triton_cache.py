"""Triton's folder of compiled kernels: one that cannot be written is said, and not met as a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

from triton import knobs

from cadence.kernels.triton.common.cache import prepare_cache

pytestmark = pytest.mark.device


def test_an_empty_folder_means_compiling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        prepare_cache()
        assert "are compiled as they are first met" in capsys.readouterr().err
        (tmp_path / "cache" / "kernel").mkdir()
        prepare_cache()
        assert knobs.cache.dir == str(tmp_path / "cache") and capsys.readouterr().err == ""


def test_a_folder_that_cannot_be_written_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "file" / "cache")
        prepare_cache()
        said = capsys.readouterr().err
        assert said.startswith(f"{tmp_path}/file/cache cannot be written (Not a directory): ") and said.count("\n") == 1
        assert Path(knobs.cache.dir).is_dir() and Path(knobs.cache.dir).name.startswith("cadence-triton-")
        Path(knobs.cache.dir).rmdir()
