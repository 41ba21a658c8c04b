"""`prompt_embeds` as files: the same matrix in every format, and one sentence for what is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cadence.core.errors import InvalidRequestError
from cadence.media.vectors import read_vectors
from tests.media.bad_vectors import base64_of, broken_files, good_files, halved_files, strange_files, torch_file

VALUES = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", good_files(VALUES))
def test_every_format_gives_the_same_matrix(name: str) -> None:
    found = read_vectors(base64_of(good_files(VALUES)[name]), "prompt_embeds")
    np.testing.assert_array_equal(found.values_np, VALUES.numpy(), strict=True)


@pytest.mark.parametrize("name", halved_files(VALUES))
def test_half_as_many_bits(name: str) -> None:
    values = VALUES.half().bfloat16().float()  # a bfloat16 of few bits is a float16, too
    found = read_vectors(base64_of(halved_files(values)[name]), "prompt_embeds")
    np.testing.assert_array_equal(found.values_np, values.numpy(), strict=True)


def test_one_token() -> None:
    """Of which torch may say anything about the entries between two lines."""
    for values in (VALUES[:1], VALUES[None, 2], VALUES.T.contiguous().T[:1].contiguous(), VALUES[3:4]):
        found = read_vectors(base64_of(torch_file(values)), "prompt_embeds")
        np.testing.assert_array_equal(found.values_np, values.numpy(), strict=True)


@pytest.mark.parametrize(("name", "data"), [pytest.param(*each, id=each[0]) for each in strange_files()])
def test_anything_else_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt_embeds\[3\] must be a file of one matrix") as raised:
        read_vectors(base64_of(data), "prompt_embeds[3]")
    assert raised.value.field == "prompt_embeds[3]"


def test_what_is_broken_is_a_matrix_or_refused() -> None:
    refused = 0
    for name, data in broken_files(seed=1, count=400):
        try:
            found = read_vectors(base64_of(data), "prompt_embeds")
        except InvalidRequestError:
            refused += 1
        else:  # bytes of a value were changed, or of what counts for nothing
            assert found.values_np.ndim == 2 and found.values_np.size <= 20, name
    assert refused


@pytest.mark.parametrize("text", ["%", "abc", "AAAA AAAA", "é" * 8])
def test_what_is_no_base64(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="prompt_embeds is not base64"):
        read_vectors(text, "prompt_embeds")
