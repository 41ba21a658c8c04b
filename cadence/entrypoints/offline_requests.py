"""The requests of one `LLM`, from their way into its engine to their last outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import SamplingParams
from cadence.engine.llm_engine import LLMEngine
from cadence.engine.text.pooled_options import PooledOptions
from cadence.engine.text.prompts import PromptType
from cadence.entrypoints.interrupts import HeldInterrupts
from cadence.entrypoints.media.ahead import prepared_ahead
from cadence.entrypoints.progress import open_progress

_TEXTS = 8  # of which values are wanted, between two looks at whether they fill a step: a look costs as much as a text


class OfflineRequests:
    """Adds requests to an engine and steps it until they are done. Outputs of others that were enqueued wait here."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._ids = itertools.count()
        self._enqueued: dict[str, None] = {}  # ids in their order, not yet waited for
        self._done: dict[str, RequestOutput] = {}  # of these, by id

    def new_id(self) -> str:
        return str(next(self._ids))

    def submit(
        self,
        prompts: Iterable[PromptType],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
        adapters: Sequence[object],
        extras: dict[str, Any],
    ) -> list[str]:
        """All or nothing: a bad prompt, or an interrupt, leaves no half-submitted batch. Prompts are taken as
        they come: the engine computes the first ones meanwhile."""
        ids: list[str] = []
        with self.dropped_on_error(ids) as interrupts:
            ahead = prepared_ahead(prompts, self._engine.prepared)
            for prompt, param, priority, adapter in zip(ahead, params, priorities, adapters, strict=True):
                ids.append(self.new_id())
                given = {"lora_request": adapter, "priority": priority, **extras}
                self._engine.add_request(ids[-1], prompt, param, **given)
                self._engine.begin()
                interrupts.check()
        return ids

    def submit_pooled(self, prompts: Iterable[PromptType], options: Sequence[PooledOptions]) -> list[str]:
        """As `submit`, of prompts of which values are wanted."""
        ids: list[str] = []
        with self.dropped_on_error(ids) as interrupts:
            for prompt, option in zip(prompts, options, strict=True):
                ids.append(self.new_id())
                self._engine.add_pooled(ids[-1], prompt, option)
                if not len(ids) % _TEXTS:
                    self._engine.begin()
                    interrupts.check()
        return ids

    def run(self, ids: list[str], use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        """Steps until all of `ids` are done. Outputs of requests that wait to be asked for are kept; those of requests
        aborted earlier may pass by and are dropped."""
        finished = {request_id: self._done.pop(request_id) for request_id in ids if request_id in self._done}
        waiting = set(ids) - finished.keys()
        with self.dropped_on_error(ids) as interrupts, open_progress(use_tqdm, len(ids)) as progress:
            if waiting:
                self._engine.check_awake()
            while waiting:
                for output in self._engine.step():
                    if output.request_id in waiting:
                        waiting.remove(output.request_id)
                        finished[output.request_id] = output
                        progress.count_tokens(output)
                        progress.advance()
                    else:
                        self._keep(output)
                interrupts.check()
        return [finished[request_id] for request_id in ids]

    def enqueue(self, ids: list[str]) -> None:
        """Their outputs are kept until they are asked for."""
        self._enqueued |= dict.fromkeys(ids)

    def take_enqueued(self) -> list[str]:
        ids, self._enqueued = list(self._enqueued), {}
        return ids

    @contextmanager
    def dropped_on_error(self, ids: list[str]) -> Iterator[HeldInterrupts]:
        """For a call that fails or is interrupted: of its requests nothing is left in the engine."""
        try:
            with HeldInterrupts() as interrupts:
                yield interrupts
        except BaseException:
            for output in self._engine.drop_requests(ids):
                self._keep(output)
            raise

    def _keep(self, output: RequestOutput) -> None:
        if output.request_id in self._enqueued:
            self._done[output.request_id] = output


def one_each(lora_request: object, count: int) -> Sequence[object]:
    """The adapters of so many prompts: the same for all, or one of a list for each."""
    if not isinstance(lora_request, (list, tuple)):
        return [lora_request] * count
    if len(lora_request) != count:
        raise InvalidRequestError(f"{len(lora_request)} lora_requests for {count} prompts", "lora_request")
    return lora_request
