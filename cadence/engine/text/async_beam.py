"""Beam search by an engine in another process: a round asks for all live beams at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from cadence.core.contract.request import FinishReason
from cadence.core.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput, RequestOutput
from cadence.engine.text.beam import BeamSearch
from cadence.process.together import all_or_none
from cadence.text.null_tokenizer import AnyTokenizer

_FAILED = (FinishReason.ABORT.value, FinishReason.ERROR.value)

AskOne = Callable[[int, list[int]], Awaitable[RequestOutput]]  # number and tokens of a beam -> the answer to its probe


@dataclass(frozen=True, slots=True)
class BeamRequest:
    request_id: str
    prompt: str | None
    token_ids: list[int]
    skip_special_tokens: bool
    show_stop: bool  # the token that ended a beam is part of its output


async def search_beams(search: BeamSearch, request: BeamRequest, ask: AskOne, tokenizer: AnyTokenizer) -> RequestOutput:
    """The best beams as completions of one request; or the output of a beam that failed, and the whole with it."""
    rounds = search.rounds([request.token_ids])
    try:
        beams = next(rounds)
        while True:
            answers = await all_or_none([ask(number, beam.tokens) for number, beam in enumerate(beams)])
            for answer in answers:
                if answer.outputs[0].finish_reason in _FAILED:
                    return replace(answer, request_id=request.request_id, prompt=request.prompt)
            beams = rounds.send(answers)
    except StopIteration as done:
        found: list[BeamSearchOutput] = done.value
    outputs = [
        _completion(index, beam, request, search.stops, tokenizer) for index, beam in enumerate(found[0].sequences)
    ]
    return RequestOutput(request.request_id, request.prompt, request.token_ids, None, outputs, True)


def _completion(
    index: int, beam: BeamSearchSequence, request: BeamRequest, stops: frozenset[int], tokenizer: AnyTokenizer
) -> CompletionOutput:
    """Each position's own token comes first among its logprobs."""
    token_ids = beam.tokens[len(request.token_ids) :]
    stopped = token_ids[-1] in stops
    shown = token_ids if request.show_stop or not stopped else token_ids[:-1]
    pairs = zip(shown, beam.logprobs, strict=False)  # the logprobs of a stop that is not shown are not, either
    return CompletionOutput(
        index,
        tokenizer.decode(shown, request.skip_special_tokens),
        shown,
        beam.cum_logprob,
        [{token_id: position[token_id], **position} for token_id, position in pairs],
        beam.finish_reason,
        beam.stop_reason,
    )
