"""The tokens a step may compute, and how they may be shared out."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config.engine_config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class TokenBudget:
    step: int  # most tokens of a forward
    chunk: int  # most tokens of one request in a forward
    whole: bool  # a new request computes all the tokens it lacks at once, or waits
    in_flight: int  # most tokens of one request in steps that have not returned
    turns: int = 1  # steps over which rows that decode are spread
    width: int = 1  # most tokens a request samples in one forward
    reserve: int = 0  # tokens after a row's newest whose keys a step may write, drafts of the step aside
    padded: bool = False  # a forward computes as many tokens for every row as for the one with the most

    @staticmethod
    def of(
        config: SchedulerConfig, max_model_len: int, width: int = 1, reserve: int = 0, padded: bool = False
    ) -> TokenBudget:
        chunk = min(config.max_num_batched_tokens, max_model_len)
        if config.enable_chunked_prefill and config.long_prefill_token_threshold > 0:
            chunk = min(chunk, config.long_prefill_token_threshold)
        whole = not config.enable_chunked_prefill
        in_flight = (chunk + config.burst_steps * width - 1) * config.steps_in_flight
        turns = min(config.num_stages, config.steps_in_flight)
        return TokenBudget(config.max_num_batched_tokens, chunk, whole, in_flight, turns, width, reserve, padded)
