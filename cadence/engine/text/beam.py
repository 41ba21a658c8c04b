"""Beam search, above the engine: each round asks every live beam for its likeliest next tokens.

The beams share their prompts' KV through the prefix cache, so a round costs one token per beam.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from cadence.core.contract.request import FinishReason
from cadence.core.errors import AdapterError, CadenceError, InvalidRequestError
from cadence.core.failure import FailureCode
from cadence.core.outputs import BeamSearchOutput, BeamSearchSequence, Logprob, RequestOutput
from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams


@dataclass(frozen=True, slots=True)
class LiveBeam:
    prompt: int  # its place among the prompts
    tokens: list[int]  # the prompt's, and its own


# Every live beam -> one more token for each, with the logprobs of the likeliest ones.
Rounds = Generator[list[LiveBeam], list[RequestOutput], list[BeamSearchOutput]]
Probe = Callable[[list[LiveBeam], SamplingParams], list[RequestOutput]]  # outputs come in the beams' order


@dataclass(slots=True)
class _Search:
    """The state of one prompt's search."""

    prompt_len: int
    live: list[BeamSearchSequence]
    done: list[BeamSearchSequence] = field(default_factory=list)


class BeamSearch:
    """The search alone: the caller drives `rounds` and asks the engine."""

    def __init__(self, max_model_len: int, eos_token_ids: frozenset[int], params: BeamSearchParams) -> None:
        self._max_model_len = max_model_len
        self._params = params
        self.stops: frozenset[int] = frozenset() if params.ignore_eos else eos_token_ids
        # Twice the width: even if half of the candidates end, enough live ones remain.
        self.probe = SamplingParams(
            temperature=params.temperature,
            logprobs=2 * params.beam_width,
            max_tokens=1,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=params.structured_outputs,
        )

    def rounds(self, token_lists: list[list[int]]) -> Rounds:
        """Yields every live beam, and takes the answers to `probe` for them, in order."""
        searches = [_Search(len(tokens), [BeamSearchSequence(list(tokens))]) for tokens in token_lists]
        for _ in range(self._params.max_tokens):
            self._end_at_model_length(searches)
            beams = [LiveBeam(place, beam.tokens) for place, search in enumerate(searches) for beam in search.live]
            if not beams:
                break
            answers = iter((yield beams))
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
        if candidate.tokens[-1] not in self.stops:
            candidates.append(candidate)
            return
        candidate.finish_reason = "stop"
        if not self._params.include_stop_str_in_output:
            candidate.stop_reason = candidate.tokens[-1]
        search.done.append(candidate)

    def _end_at_model_length(self, searches: list[_Search]) -> None:
        for search in searches:
            for beam in [beam for beam in search.live if len(beam.tokens) >= self._max_model_len]:
                beam.finish_reason = "length"
                search.done.append(beam)
                search.live.remove(beam)

    def _ranked(self, search: _Search) -> BeamSearchOutput:
        for beam in search.live:
            beam.finish_reason = "length"
        return BeamSearchOutput(
            sorted(search.done + search.live, key=self._score, reverse=True)[: self._params.beam_width]
        )

    def _score(self, beam: BeamSearchSequence) -> float:
        """Cumulative logprob over length to the power of the penalty; a closing stop token does not count."""
        length = len(beam.tokens) - (beam.tokens[-1] in self.stops)
        return float(beam.cum_logprob / length**self._params.length_penalty)


def _extended(
    beam: BeamSearchSequence, token_id: int, logprob: Logprob, position: dict[int, Logprob]
) -> BeamSearchSequence:
    return BeamSearchSequence(
        tokens=[*beam.tokens, token_id],
        cum_logprob=beam.cum_logprob + logprob.logprob,
        logprobs=[*beam.logprobs, position],
    )


def run_rounds(search: BeamSearch, token_lists: list[list[int]], probe: Probe) -> list[BeamSearchOutput]:
    """By an engine in this process."""
    rounds = search.rounds(token_lists)
    try:
        beams = next(rounds)
        while True:
            answers = probe(beams, search.probe)
            _raise_failed(answers)
            beams = rounds.send(answers)
    except StopIteration as done:
        found: list[BeamSearchOutput] = done.value
        return found


def _raise_failed(answers: list[RequestOutput]) -> None:
    """What one beam failed of is the whole search's error."""
    for output in (answer.outputs[0] for answer in answers):
        if output.finish_reason != FinishReason.ERROR.value:
            continue
        why = str(output.stop_reason)
        if output.failure is FailureCode.BAD_ADAPTER:
            raise AdapterError(why)
        if output.failure is FailureCode.BAD_GRAMMAR:
            raise InvalidRequestError(why, "structured_outputs")
        raise CadenceError(why)
