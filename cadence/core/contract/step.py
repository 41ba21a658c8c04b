"""THE contract between the two halves: `StepPlan` goes down, `StepResult` comes up.

A plan is a difference: rows that begin, rows that end, blocks that were added, and for this step two
small arrays that say which rows compute how many tokens. What did not change is not repeated.

Order of application: `ended`, then `payloads`, then `begun`, then `blocks`, then the step itself.

Features have no fields here. Its host half sends payloads to its device half under the feature's name, in `payloads`;
`core/contract/features.py` has their types.

A row computes a *run* of consecutive tokens and samples after the last of them: after none (a piece of a prompt),
after one, or after several: the newest token and the drafts that were proposed to follow it. The plan says how many
drafts a run has at most; how many there are, and how many are kept, only the device knows. What the host counts are
upper bounds, until the result is there.

A plan alone computes nothing: the host then asks for its forwards, for all at once or for some at a time. A step may
be a burst of several. The first computes what the arrays say; in each one after it, every row that samples computes
the token it has just got, with drafts of its own, and samples the next. The device advances tokens, lengths and slots
itself, and a row that ends in mid-burst (a stop token, its length) goes quiet: it yields no more tokens.

Some rows need more from the host than a plan: mail, which it can write only when it has their last tokens. Such a row
waits: the forward runs, and its tokens are chosen when the mail is there. It takes part in the first forward of a
burst only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.failure import Failure
from cadence.core.sampling_params import SamplingParams

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]

NO_TOKEN = -1


class RowPayloads(dict[str, Any]):
    """By a feature's name: what is said of a row that begins. Without an entry, the row does not use the feature."""


class StepPayloads(dict[str, Any]):
    """By a feature's name: what is sent with a plan. Without an entry, nothing is."""


class Mail(dict[str, Any]):
    """By a feature's name: what rows of a step wait for before their tokens are chosen."""


class ResultPayloads(dict[str, Any]):
    """By a feature's name: what came back beside tokens. Without an entry, nothing did."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request that takes a row: fresh, or resumed after preemption (the device sees no difference)."""

    row: int
    request_id: str
    token_ids_np: IntArray  # [known]: prompt, and after a preemption also the tokens generated so far
    prompt_len: int  # the first prompt_len tokens are the prompt
    num_computed: int  # leading tokens whose KV is already in the blocks (prefix-cache hit)
    block_ids: tuple[list[int], ...]  # per KV group; index i holds tokens [i*block_size, (i+1)*block_size)
    sampling: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]  # eos and stop ids together: what min_tokens suppresses
    max_len: int  # most tokens (prompt + output) this request may ever hold
    payloads: RowPayloads = field(default_factory=RowPayloads)
    samples: bool = True  # it gets tokens after its prompt


@dataclass(frozen=True, slots=True)
class NewBlocks:
    """Blocks appended to the table of a row that already exists."""

    row: int
    group: int
    start: int  # index of the first new entry in the row's table
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class StepPlan:
    step_id: int
    ended: list[int]  # rows given back since the last plan
    begun: list[NewRow]
    blocks: list[NewBlocks]
    rows_np: IntArray  # [n] rows that compute in this step, in any order, each at most once
    num_tokens_np: IntArray  # [n] tokens each computes, >= 1: so many known ones, or the newest and drafts, at most
    num_computed_np: IntArray  # [n] tokens computed before this step (an upper bound; the device holds the truth)
    num_samples_np: IntArray  # [n] of these, the last so many yield a new token: 0, 1, or 1 + drafts
    num_forwards: int = 1  # at most; blocks for all their tokens are in the tables
    num_together: int = 1  # forwards whose tokens may come back in one part: no stream reads them one by one
    width: int = 1  # most tokens that each row computes and samples in a forward after the first
    waits: list[int] = field(default_factory=list)  # rows that sample and wait for mail, in plan order
    payloads: StepPayloads = field(default_factory=StepPayloads)

    @property
    def total_tokens(self) -> int:
        return int(self.num_tokens_np.sum())


_NO_ROWS_NP: IntArray = np.zeros(0, dtype=np.int32)
NO_PLAN = StepPlan(0, [], [], [], _NO_ROWS_NP, _NO_ROWS_NP, _NO_ROWS_NP, _NO_ROWS_NP)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logprobs at one position. Entry 0 is the token that stands there, the rest are the most likely ones."""

    token_ids_np: IntArray  # [1 + k]
    logprobs_np: FloatArray  # [1 + k]
    rank: int  # of the token that stands there, 1 = most likely


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of prompt tokens [start, start + m) of one request (never of token 0)."""

    start: int
    token_ids_np: IntArray  # [m, 1 + k], column 0 is the prompt's own token
    logprobs_np: FloatArray  # [m, 1 + k]
    ranks_np: IntArray  # [m]


@dataclass(frozen=True, slots=True)
class PooledOutput:
    """What was made of prompt tokens [start, …) of one request, in place of new ones: one vector, or one of each."""

    start: int  # of the first token it speaks of
    values_np: FloatArray  # [entries], or [tokens, entries]
    is_last: bool  # nothing follows


RowOutput = TokenLogprobs | PromptLogprobs | PooledOutput  # what a row may ask for beside its tokens


@dataclass(frozen=True, slots=True)
class StepResult:
    """A part of what a step produced: m of its forwards, in order. A burst returns in parts, as its tokens exist."""

    step_id: int
    token_ids_np: IntArray  # [m, rows that sample, most tokens of one], in plan order; NO_TOKEN after each one's last
    num_verified_np: IntArray  # [m, rows that sample]: lines of its run beyond the first, which were verified
    outputs: list[tuple[int, RowOutput]] = field(default_factory=list)  # (row, output), of rows that asked, in order
    errors: dict[int, Failure] = field(default_factory=dict)  # by row: this request failed, the others did not
    payloads: ResultPayloads = field(default_factory=ResultPayloads)
