"""Texts that weights are calibrated with and measured on, as windows of tokens."""

from __future__ import annotations

from pathlib import Path

from cadence.core.errors import ConfigError
from cadence.text.tokenizer import Tokenizer

LEAST_TOKENS = 32
_DATA = Path(__file__).resolve().parents[3] / "models" / "quantize" / "data"
CALIBRATION = _DATA / "calibration.txt"
HELD_OUT = _DATA / "held_out.txt"


def read_windows(path: Path, tokenizer: Tokenizer, length: int, most: int) -> list[list[int]]:
    """Windows of `length` tokens, evenly spread over the text, `most` tokens in all; each begins as texts do."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a text that can be read: {error}", "calibrate") from None
    begin = [token for token in tokenizer.encode("a")[:1] if token == tokenizer.special.bos_id]
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) < LEAST_TOKENS:
        raise ConfigError(f"{path}: {len(ids)} tokens, where at least {LEAST_TOKENS} are needed", "calibrate")
    size = min(length - len(begin), len(ids))
    count = max(1, min(most // length, len(ids) // size))
    stride = (len(ids) - size) // max(1, count - 1)
    return [begin + ids[index * stride : index * stride + size] for index in range(count)]
