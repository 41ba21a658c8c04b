"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest

from cadence.text.hf_directory import load_tokenizer
from cadence.text.tokenizer import Tokenizer
from tests.helpers import tiny_tokenizers


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Byte-level, so that any text has tokens and characters may be cut in two."""
    folder = tmp_path_factory.mktemp("tokenizer")
    return load_tokenizer(tiny_tokenizers.save(tiny_tokenizers.byte_level(), folder))
