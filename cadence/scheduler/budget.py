"""The tokens a step may compute, and how they may be shared out."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config.engine_config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How many tokens of a row that decodes a forward may compute."""

    width: int = 1  # most tokens that a row samples: its newest, and drafts
    reserve: int = 0  # tokens after these whose keys a step may write
    padded: bool = False  # a forward computes as many tokens for every row as for the one with the most
    strict: bool = False  # `width` holds for drafts that are known to be right, too: states have room for no more


ONE_TOKEN = RunLimits()


@dataclass(frozen=True, slots=True)
class TokenBudget:
    step: int  # most tokens of a forward
    chunk: int  # most tokens of one request in a forward
    whole: bool  # a new request computes all the tokens it lacks at once, or waits
    in_flight: int  # most tokens of one request in steps that have not returned
    runs: RunLimits
    turns: int = 1  # steps over which rows that decode are spread

    @staticmethod
    def of(config: SchedulerConfig, max_model_len: int, runs: RunLimits = ONE_TOKEN) -> TokenBudget:
        chunk = min(config.max_num_batched_tokens, max_model_len)
        if config.enable_chunked_prefill and config.long_prefill_token_threshold > 0:
            chunk = min(chunk, config.long_prefill_token_threshold)
        whole = not config.enable_chunked_prefill
        in_flight = (chunk + config.burst_steps * runs.width - 1) * config.steps_in_flight
        turns = min(config.num_stages, config.steps_in_flight)
        return TokenBudget(config.max_num_batched_tokens, chunk, whole, in_flight, runs, turns)
