"""Tiny models are the same files every time: a test's result does not depend on what ran before it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.tiny_encoders import make_encoder
from tests.helpers.tiny_models import make_tiny
from tests.helpers.tiny_qwen_audio import make_qwen_audio
from tests.helpers.tiny_qwen_vl import make_qwen_vl
from tests.helpers.tiny_seq2seq import make_seq2seq
from tests.helpers.tiny_vision import make_vision
from tests.helpers.tiny_whisper import make_whisper

pytestmark = pytest.mark.device

MAKERS: dict[str, Callable[[Path], Any]] = {
    "llava": partial(make_vision, "llava"),
    "qwen2.5-vl": partial(make_qwen_vl, "2.5"),
    "qwen2-audio": make_qwen_audio,
    "whisper": make_whisper,
    "mamba": partial(make_tiny, "mamba"),
    "jamba": partial(make_tiny, "jamba"),
    "bart": partial(make_seq2seq, "bart"),
    "bert": partial(make_encoder, "bert"),
}


def digest(directory: Path) -> str:
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", MAKERS)
def test_weights_do_not_depend_on_what_was_drawn_before(name: str, tmp_path: Path) -> None:
    found = set()
    for drawn in range(2):
        torch.manual_seed(drawn)
        MAKERS[name](tmp_path / str(drawn))
        found.add(digest(tmp_path / str(drawn)))
        after = torch.random.initial_seed()
        assert after == drawn, "the tests' own generator is left as it was"
    assert len(found) == 1
