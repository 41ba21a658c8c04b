"""An engine that dies anywhere, for the supervisor's decisions: what it says of a request is a function of its prompt,
and a poison kills it at a position of its own."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.contract.codec import encode_request
from cadence.core.contract.request import EngineRequest, FinishReason, StopRule
from cadence.core.contract.update import RequestUpdate
from cadence.core.sampling_params import SamplingParams
from cadence.engine.supervise.journal import JournalEntry

NEVER = -1  # a request that is no poison
_SAMPLING = SamplingParams(temperature=0)


def make_entry(name: str, number: int, max_tokens: int, fatal_at: int = NEVER) -> JournalEntry:
    """fatal_at: the output position at which the request kills its engine."""
    stop = StopRule(frozenset(), frozenset(), 0, max_tokens)
    request = EngineRequest(name, [number, max_tokens, fatal_at + 1], _SAMPLING, stop, 0, 0.0)
    return JournalEntry(request, encode_request(request))


def token_at(request: EngineRequest, position: int) -> int:
    return (request.prompt_token_ids[0] * 7919 + position * 31) % 1009


def all_tokens(request: EngineRequest) -> list[int]:
    return [token_at(request, position) for position in range(request.stop.max_tokens)]


def fatal_position(request: EngineRequest) -> int:
    return request.prompt_token_ids[2] - 1 if len(request.prompt_token_ids) > 2 else NEVER


@dataclass
class Inside:
    request: EngineRequest
    tokens: list[int]
    prefill: int  # steps before its next token


class FakeEngine:
    def __init__(self) -> None:
        self.inside: dict[str, Inside] = {}
        self.aborts: list[str] = []  # heard of, not yet carried out

    def add(self, entries: list[JournalEntry], prefill: int) -> None:
        for entry in entries:
            assert entry.request_id not in self.inside, "two requests of one id in an engine"
            request = entry.resumed()
            self.inside[entry.request_id] = Inside(request, list(request.output_token_ids), prefill)

    def abort(self) -> list[RequestUpdate]:
        ended = [name for name in self.aborts if self.inside.pop(name, None) is not None]
        self.aborts.clear()
        return [RequestUpdate.end(name, FinishReason.ABORT) for name in ended]

    def is_killed(self) -> bool:
        """Whether the next step is its last."""
        return any(not row.prefill and len(row.tokens) == fatal_position(row.request) for row in self.inside.values())

    def step(self) -> list[RequestUpdate]:
        updates = []
        for name, row in list(self.inside.items()):
            if row.prefill:
                row.prefill -= 1
                continue
            token = token_at(row.request, len(row.tokens))
            row.tokens.append(token)
            over = len(row.tokens) >= row.request.stop.max_tokens
            update = RequestUpdate(name, [token], (), (), FinishReason.LENGTH if over else None, None, 0, 0, 0.0)
            updates.append(update)
            if over:
                del self.inside[name]
        return updates
