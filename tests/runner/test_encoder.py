"""The device half of encoders, driven by hand-made plans: what decodes after an encoder says what transformers says, in
every way to run it, and the bits of a content do not depend on what is encoded beside it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.core.contract.control import ALLOCATE_KV
from cadence.core.inputs.encoder_input import ENCODER
from tests.helpers.encoded_rows import length_of, work_of
from tests.helpers.encoder_plans import (
    PER_ROW,
    ROWS,
    blocks_of,
    check_greedy,
    check_near,
    contents_of,
    opened,
    say,
)
from tests.helpers.tiny_seq2seq import make_seq2seq
from tests.helpers.wide import mostly_wide, mostly_wide_rows

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_seq2seq(family, tmp_path_factory.mktemp(family)) for family in ("bart", "t5", "whisper")}


WAYS: dict[str, dict[str, Any]] = {
    "recorded": {},
    "not recorded": {"enforce_eager": True},
    "plain torch": {"kernels": "reference"},
    "two ranks": {"tensor_parallel_size": 2},
    "two stages": {"pipeline_parallel_size": 2},
}


ALWAYS = [("bart", "recorded"), ("bart", "two ranks"), ("t5", "two stages"), ("whisper", "recorded")]


@pytest.mark.parametrize(("family", "way"), mostly_wide_rows(product(("bart", "t5", "whisper"), WAYS), ALWAYS))
def test_decodes_say_what_transformers_says(family: str, way: str, directories: dict[str, Path]) -> None:
    """Of rows that follow others in the same places, too: what is recorded finds their lengths anew."""
    contents = contents_of(family)
    with opened(directories[family], **WAYS[way]) as made:
        check_greedy(directories[family], contents, say(made, contents, []))
        check_greedy(directories[family], contents[::-1], say(made, contents[::-1], [0, 1, 2]))


@pytest.mark.parametrize(
    "options", [{"kv_cache_dtype": "int8"}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str
)
@pytest.mark.parametrize("family", mostly_wide(("t5", "whisper", "bart"), ("whisper",)))
def test_fewer_bits_say_nearly_the_same(family: str, options: dict[str, Any], directories: dict[str, Path]) -> None:
    contents = contents_of(family)
    with opened(directories[family], **options) as made:
        check_near(directories[family], contents, say(made, contents, []))


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
@pytest.mark.parametrize("family", mostly_wide(("bart", "t5", "whisper"), ("bart",)))
def test_a_content_has_the_same_bits_in_any_company(
    family: str, options: dict[str, Any], directories: dict[str, Path]
) -> None:
    contents = contents_of(family)
    with opened(directories[family], **options) as made:
        parts = made.executor._runner._parts
        works = [work_of(each, blocks_of(made, row, True, length_of(each))) for row, each in enumerate(contents)]
        found = []
        for batches in ([works], [[work] for work in works], [works[::-1]]):
            made.executor.call(ALLOCATE_KV, 1 + ROWS * PER_ROW * len(made.layout.groups))
            for batch in batches:
                parts.features[ENCODER].apply(batch)
            found.append(torch.stack([half.clone() for cache in parts.forward.caches for half in (cache.k, cache.v)]))
    assert found[0].any() and torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
