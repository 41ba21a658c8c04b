"""Models with an encoder on a GPU: padded graphs find each row's encoder length, caches of few bits hold its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.encoder_plans import check_greedy, check_near, contents_of, opened, say
from tests.helpers.tiny_seq2seq import make_seq2seq

pytestmark = [pytest.mark.device, pytest.mark.gpu]

WAYS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "eager": {"enforce_eager": True},
    "deterministic": {"deterministic": True},
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_seq2seq(family, tmp_path_factory.mktemp(family)) for family in ("bart", "t5", "whisper")}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["bart", "t5", "whisper"])
def test_decodes_say_what_transformers_says(family: str, way: str, directories: dict[str, Path]) -> None:
    contents = contents_of(family)
    with opened(directories[family], "cuda", **WAYS[way]) as made:
        check_greedy(directories[family], contents, say(made, contents, []))
        check_greedy(directories[family], contents[::-1], say(made, contents[::-1], [0, 1, 2]))


FEW_BITS = [{"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}, {"dtype": "bfloat16"}]


@pytest.mark.parametrize("options", FEW_BITS, ids=str)
@pytest.mark.parametrize("family", ["bart", "t5", "whisper"])
def test_fewer_bits_say_nearly_the_same(family: str, options: dict[str, Any], directories: dict[str, Path]) -> None:
    contents = contents_of(family)
    with opened(directories[family], "cuda", **options) as made:
        check_near(directories[family], contents, say(made, contents, []))


def test_no_step_waits_for_the_device(directories: dict[str, Path]) -> None:
    """But for its result. Torch raises on every call that would stop the host until the device is done."""
    contents = contents_of("whisper")
    with opened(directories["whisper"], "cuda") as made:
        say(made, contents, [])  # compiles and captures
        torch.cuda.set_sync_debug_mode("error")
        try:
            say(made, contents[::-1], [0, 1, 2])
        finally:
            torch.cuda.set_sync_debug_mode("default")
