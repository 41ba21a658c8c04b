"""The tokens that a transcript may go on with, in plain torch."""

from __future__ import annotations

import torch

from cadence.kernels.interface.speech_lines import NO_TIMES, SpeechLines, WrittenTokens

_NOTHING = float("-inf")


def apply_speech_rules(logits: torch.Tensor, own: SpeechLines, written: WrittenTokens) -> None:
    logits.index_put_(own.pairs.unbind(1), logits.new_full((), _NOTHING))
    lines, tokens = own.first_pairs.unbind(1)
    begins = written.lengths[lines] == written.prompt_lens[lines]
    logits.index_put_((lines, tokens), logits[lines, tokens].masked_fill(begins, _NOTHING))
    timed = own.times[:, :1] != NO_TIMES
    logits.masked_fill_(_barred(own, written, logits.shape[1]) & timed, _NOTHING)
    times = torch.arange(logits.shape[1], device=logits.device) >= own.times[:, :1]
    logits.masked_fill_(~times & _times_are_likelier(logits, times) & timed, _NOTHING)


def _barred(own: SpeechLines, written: WrittenTokens, vocab_size: int) -> torch.Tensor:
    """[S, V]: tokens that would break a pair of times, go back in time, or begin without one."""
    first_timestamp, no_timestamps, end_of_text, last_initial = own.times.split(1, dim=1)
    lengths, prompt_lens = written.lengths[:, None], written.prompt_lens[:, None]
    tokens = written.tokens[written.rows, : own.longest].long()  # [S, longest]
    places = torch.arange(tokens.shape[1], device=tokens.device)
    is_time = (tokens >= first_timestamp) & (places >= prompt_lens) & (places < lengths)
    count = lengths - prompt_lens  # [S, 1]
    # Lines without rules may be of longer rows: what is gathered for them is not used.
    last, before = ((lengths - back).clamp(0, tokens.shape[1] - 1) for back in (1, 2))
    after_time = is_time.gather(1, last) & (count > 0)
    # The first time has no partner: after it comes text, as after a pair.
    after_pair = after_time & ((count < 2) | is_time.gather(1, before))
    last_place = torch.where(is_time, places, -1).amax(dim=1, keepdim=True)
    last_time = tokens.gather(1, last_place.clamp(min=0)) + torch.where(after_time & ~after_pair, 0, 1)
    earliest = torch.where(last_place >= 0, last_time, first_timestamp)
    ids = torch.arange(vocab_size, device=tokens.device)
    times = ids >= first_timestamp
    barred = (ids == no_timestamps) | (times & (ids < earliest)) | (times & after_pair)
    barred |= (ids < end_of_text) & after_time & ~after_pair
    return barred | ((count == 0) & (~times | (ids > last_initial)))


def _times_are_likelier(logits: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """logits, times [S, V] -> [S, 1]: all times together are likelier than any other token"""
    of_times = logits.masked_fill(~times, _NOTHING).logsumexp(dim=-1, keepdim=True)
    return of_times > logits.masked_fill(times, _NOTHING).amax(dim=-1, keepdim=True)
