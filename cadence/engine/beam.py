"""Beam search, above the engine: each round asks every live beam for its likeliest next tokens.

The beams share their prompts' KV through the prefix cache, so a round costs one token per beam.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cadence.core.outputs import BeamSearchOutput, BeamSearchSequence, Logprob, RequestOutput
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams


@dataclass(frozen=True, slots=True)
class BeamPort:
    """What beam search needs of an engine."""

    max_model_len: int
    eos_token_ids: frozenset[int]
    probe: Callable[[list[list[int]], SamplingParams], list[RequestOutput]]  # token lists -> outputs, in order
    encode: Callable[[Any], list[int]]  # a prompt in any shape -> token ids
    decode: Callable[[list[int]], str]


@dataclass(slots=True)
class _Search:
    """The state of one prompt's search."""

    prompt_len: int
    live: list[BeamSearchSequence]
    done: list[BeamSearchSequence] = field(default_factory=list)


class BeamSearch:
    def __init__(self, port: BeamPort, params: BeamSearchParams) -> None:
        self._port = port
        self._params = params
        self._stops: frozenset[int] = frozenset() if params.ignore_eos else port.eos_token_ids
        # Twice the width: even if half of the candidates end, enough live ones remain.
        self._probe = SamplingParams(
            temperature=params.temperature,
            logprobs=2 * params.beam_width,
            max_tokens=1,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def run(self, prompts: Sequence[Any], concurrency: int, on_done: Callable[[], None]) -> list[BeamSearchOutput]:
        """concurrency: prompts searched at once."""
        token_lists = [self._port.encode(prompt) for prompt in prompts]
        outputs: list[BeamSearchOutput] = []
        for start in range(0, len(token_lists), concurrency):
            for output in self._run_together(token_lists[start : start + concurrency]):
                outputs.append(output)
                on_done()
        return outputs

    def _run_together(self, token_lists: list[list[int]]) -> list[BeamSearchOutput]:
        searches = [_Search(len(tokens), [BeamSearchSequence(list(tokens))]) for tokens in token_lists]
        for _ in range(self._params.max_tokens):
            self._end_at_model_length(searches)
            beams = [beam for search in searches for beam in search.live]
            if not beams:
                break
            answers = iter(self._port.probe([beam.tokens for beam in beams], self._probe))
            for search in searches:
                self._extend(search, list(itertools.islice(answers, len(search.live))))
        return [self._ranked(search) for search in searches]

    def _extend(self, search: _Search, answers: list[RequestOutput]) -> None:
        candidates: list[BeamSearchSequence] = []
        for beam, answer in zip(search.live, answers, strict=True):
            logprobs = (answer.outputs[0].logprobs or [{}])[0]
            ranked = sorted(logprobs.items(), key=lambda item: item[1].rank or 0)
            for token_id, logprob in ranked[: 2 * self._params.beam_width]:
                self._place(search, candidates, _extended(beam, token_id, logprob, logprobs))
        candidates.sort(key=self._score, reverse=True)
        search.live = candidates[: self._params.beam_width]

    def _place(self, search: _Search, candidates: list[BeamSearchSequence], candidate: BeamSearchSequence) -> None:
        if candidate.tokens[-1] not in self._stops:
            candidates.append(candidate)
            return
        candidate.finish_reason = "stop"
        if not self._params.include_stop_str_in_output:
            candidate.stop_reason = candidate.tokens[-1]
        search.done.append(candidate)

    def _end_at_model_length(self, searches: list[_Search]) -> None:
        for search in searches:
            for beam in [beam for beam in search.live if len(beam.tokens) >= self._port.max_model_len]:
                beam.finish_reason = "length"
                search.done.append(beam)
                search.live.remove(beam)

    def _ranked(self, search: _Search) -> BeamSearchOutput:
        for beam in search.live:
            beam.finish_reason = "length"
        best = sorted(search.done + search.live, key=self._score, reverse=True)[: self._params.beam_width]
        for beam in best:
            beam.text = self._port.decode(beam.tokens)
        return BeamSearchOutput(best)

    def _score(self, beam: BeamSearchSequence) -> float:
        """Cumulative logprob over length to the power of the penalty; a closing stop token does not count."""
        length = len(beam.tokens) - (beam.tokens[-1] in self._stops)
        return float(beam.cum_logprob / length**self._params.length_penalty)


def _extended(
    beam: BeamSearchSequence, token_id: int, logprob: Logprob, position: dict[int, Logprob]
) -> BeamSearchSequence:
    return BeamSearchSequence(
        tokens=[*beam.tokens, token_id],
        cum_logprob=beam.cum_logprob + logprob.logprob,
        logprobs=[*beam.logprobs, position],
    )
