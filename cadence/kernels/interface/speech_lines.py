"""What `apply_speech_rules` is told of the lines of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NO_TIMES = -1  # in place of a first timestamp: the line has no rules of times


@dataclass(frozen=True, slots=True)
class SpeechLines:
    """The rules of the S lines of a step."""

    pairs: torch.Tensor  # [m, 2] int64, contiguous: a line and a token that it never gets
    first_pairs: torch.Tensor  # [f, 2] int64, contiguous: a line and a token that it does not begin with
    times: (
        torch.Tensor
    )  # [S, 4] int64, contiguous: first timestamp or NO_TIMES, no_timestamps, end_of_text, last_initial
    longest: int  # tokens that any of the rows can ever hold


@dataclass(frozen=True, slots=True)
class WrittenTokens:
    """What the lines' rows hold before them."""

    tokens: torch.Tensor  # [num_rows, max_len] int32: of line i tokens[rows[i], :lengths[i]]
    rows: torch.Tensor  # [S] int64
    lengths: torch.Tensor  # [S] int64
    prompt_lens: torch.Tensor  # [S] int64
