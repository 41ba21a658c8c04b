"""One request on its way back to text: tokens in, text, logprobs and the stop decision out."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.update import AnyUpdate, RequestTokens, RequestUpdate
from cadence.core.draft_stats import NO_DRAFTS, DraftStats, Run, first_runs, kept_places
from cadence.core.failure import Failure, FailureCode
from cadence.core.flat_logprobs import FlatLogprobs
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.outputs import CompletionOutput, PositionLogprobs, RequestMetrics
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.engine.text.logprobs import LogprobNames, position_logprobs, prompt_position_logprobs
from cadence.engine.text.repetition import make_watch
from cadence.text.detokenizer import Detokenizer, NullDetokenizer
from cadence.text.null_tokenizer import AnyTokenizer
from cadence.text.stop import stop_state


def _encoder_ids(request: EngineRequest) -> list[int] | None:
    """What an encoder reads of it, where that is text."""
    content = request.attached(EncoderInput)
    return None if content is None or not len(content.token_ids_np) else content.token_ids_np.tolist()


class RequestText:
    """Everything the front keeps of one running request (one of n completions)."""

    is_pooled = False

    def __init__(self, request: EngineRequest, prompt: str | None, index: int, tokenizer: AnyTokenizer) -> None:
        params = request.params
        self.request_id, self.tenant = request.request_id, request.tenant
        self.index = index
        self.prompt = prompt
        self.prompt_token_ids = request.prompt_token_ids
        self.encoder_token_ids = _encoder_ids(request)
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None  # a token, a stop string, or the sentence of a failure
        self.failure: FailureCode | None = None
        self.num_cached_tokens = 0
        self.engine = 0  # which of several gave its newest tokens
        self.speculation: DraftStats = NO_DRAFTS
        self._drafted: list[int] = []  # places in token_ids of drafts; in a stream of deltas, of those not sent yet
        self.metrics = RequestMetrics(arrival_time=request.arrival_time)
        self.token_gap = 0.0  # seconds between the last tokens that came and those before; 0.0 for the first
        self._prompt_logprobs: list[PositionLogprobs | None] = [None]  # the first token has no predecessor
        self._params: SamplingParams = params
        self._watch = make_watch(params.repetition_detection)
        self._given = params.logprob_token_ids is not None
        self._detokenizer = _detokenizer(request, tokenizer)
        self._stops = stop_state(params.stop_strings, params.include_stop_str_in_output)
        # Nothing but tokens and their text comes of an update that does not end the request, and all of it at once.
        more = (params.logprobs, params.prompt_logprobs, params.repetition_detection, params.stop_strings or None)
        self._is_plain = all(asked is None for asked in more) and (params.stream_interval or 1) == 1
        self._is_plain = self._is_plain and params.output_kind is RequestOutputKind.DELTA
        self._text = ""  # released to the user: never half a character, never the beginning of a stop string
        self._logprobs = None if params.logprobs is None else _logprobs(params)
        self._cumulative = 0.0
        self._sent_tokens = 0
        self._sent_text = 0

    def accept(self, update: RequestUpdate, names: LogprobNames) -> None:
        """Takes in what one step produced. Sets finish_reason when a stop string was found or the core ended it."""
        self._accept_times(update)
        self.num_cached_tokens = update.num_cached_tokens
        if update.new_token_ids:
            self.engine = update.engine
        for chunk in update.prompt_logprobs:  # after a restart the prompt is computed again
            self._prompt_logprobs[chunk.start :] = prompt_position_logprobs(chunk, names)
        first = len(self.token_ids)
        self._accept_tokens(update, names)
        if update.runs:
            self._accept_runs(first, first_runs(update.runs, len(self.token_ids) - first))

    def whole(self, tokens: RequestTokens) -> RequestUpdate:
        """An update with them that says for the rest what the last one said."""
        return RequestUpdate(
            request_id=self.request_id,
            new_token_ids=tokens.new_token_ids,
            logprobs=(),
            prompt_logprobs=(),
            finish_reason=None,
            stop_reason=None,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.metrics.num_preemptions,
            first_scheduled_time=self.metrics.first_scheduled_time,
            engine=tokens.engine,
        )

    def is_only_text(self, update: AnyUpdate) -> bool:
        """Whether the user hears of this at once, and of nothing but text: so it is with most tokens."""
        if isinstance(update, RequestTokens):
            return self._is_plain and self._sent_tokens > 0
        is_more = update.finish_reason is not None or update.runs or not update.new_token_ids
        return self._is_plain and not is_more and self._sent_tokens > 0

    def accept_text(self, update: AnyUpdate) -> str:
        """As `accept` and `completion`, of such an update. -> the text since the last time"""
        if isinstance(update, RequestTokens):
            self._accept_token_time()
        else:
            self._accept_times(update)
            self.num_cached_tokens = update.num_cached_tokens
        self.engine = update.engine
        self.token_ids += update.new_token_ids
        self._text += self._stops.push(self._detokenizer.append(update.new_token_ids))
        first = self._sent_text
        self._sent_tokens, self._sent_text = len(self.token_ids), len(self._text)
        return self._text[first:]

    def _accept_tokens(self, update: RequestUpdate, names: LogprobNames) -> None:
        """Up to the one that ends the request, if one does."""
        by_token = update.finish_reason is FinishReason.STOP and not update.complete
        hide_last = by_token and not self._params.include_stop_str_in_output
        for number, token_id in enumerate(update.new_token_ids, start=1):
            self._accept_token(token_id, show=not (hide_last and number == len(update.new_token_ids)))
            if update.logprobs and self._logprobs is not None:
                entry = update.logprobs[number - 1]
                self._logprobs.append(position_logprobs(entry, names, self._given))
                self._cumulative += float(entry.logprobs_np[0])
            if self._stops.matched is not None:
                self._finish(FinishReason.STOP, self._stops.matched)
                return
            if self._watch.repeats(token_id) and self._ends_by_repetition(update, number):
                self._end(FinishReason.REPETITION, "repetition_detected")
                return
        if update.finish_reason is not None:
            self._end(update.finish_reason, update.stop_reason)

    def _accept_runs(self, first: int, runs: Sequence[Run]) -> None:
        """Of forwards that brought the tokens from place `first` on."""
        self.speculation = self.speculation.add(runs)
        self._drafted += [first + place for place in kept_places(runs)]

    @property
    def num_shown(self) -> int:
        """Tokens that outputs were made of."""
        return self._sent_tokens

    @property
    def detokenizes(self) -> bool:
        return self._params.detokenize

    @property
    def max_tokens(self) -> int | None:
        return self._params.max_tokens

    @property
    def prompt_logprobs(self) -> Sequence[PositionLogprobs | None] | None:
        if self._params.prompt_logprobs is None:
            return None
        if not self._params.flat_logprobs:
            return self._prompt_logprobs
        flat = FlatLogprobs()
        flat.extend(self._prompt_logprobs)
        return flat

    def wants_output(self) -> bool:
        """Whether the user asked to hear of this state (kind and stream_interval)."""
        if self.finish_reason is not None:
            return True
        if self._params.output_kind is RequestOutputKind.FINAL_ONLY or len(self.token_ids) == self._sent_tokens:
            return False
        interval = self._params.stream_interval or 1
        return self._sent_tokens == 0 or len(self.token_ids) - self._sent_tokens >= interval

    def completion(self) -> CompletionOutput:
        delta = self._params.output_kind is RequestOutputKind.DELTA
        first_token = self._sent_tokens if delta else 0
        first_char = self._sent_text if delta else 0
        self._sent_tokens, self._sent_text = len(self.token_ids), len(self._text)
        return CompletionOutput(
            index=self.index,
            text=self._text[first_char:],
            token_ids=self.token_ids[first_token:],
            cumulative_logprob=None if self._logprobs is None else self._cumulative,
            logprobs=None if self._logprobs is None else self._logprobs[first_token:],
            finish_reason=None if self.finish_reason is None else self.finish_reason.value,
            stop_reason=self.stop_reason,
            speculation=self.speculation,
            drafted=self._take_drafted(first_token, delta),
            failure=self.failure,
        )

    def _take_drafted(self, first_token: int, delta: bool) -> list[int]:
        """Counted from `first_token`."""
        if not self._drafted:
            return []
        drafted = [place - first_token for place in self._drafted]
        if delta:
            self._drafted = []
        return drafted

    def _accept_token(self, token_id: int, show: bool) -> None:
        self.token_ids.append(token_id)
        if show:
            self._text += self._stops.push(self._detokenizer.append([token_id]), check=self._stop_strings_count())

    def _stop_strings_count(self) -> bool:
        return len(self.token_ids) > self._params.min_tokens

    def _ends_by_repetition(self, update: RequestUpdate, number: int) -> bool:
        """Not before min_tokens, and not where the core has ended the request with this token."""
        ended = update.finish_reason is not None and number == len(update.new_token_ids)
        return not ended and len(self.token_ids) >= self._params.min_tokens

    def _accept_times(self, update: RequestUpdate) -> None:
        self.metrics.first_scheduled_time = update.first_scheduled_time
        self.metrics.num_preemptions = update.num_preemptions
        if update.new_token_ids:
            self._accept_token_time()

    def _accept_token_time(self) -> None:
        """Tokens have come now."""
        now, times = time.monotonic(), self.metrics
        times.first_token_time = times.first_token_time or now
        self.token_gap = now - (times.last_token_time or now)
        times.last_token_time = now

    def _end(self, reason: FinishReason, stop_reason: int | str | Failure | None) -> None:
        """What was held back is shown; a stop string that it completes is what ended the request."""
        self._text += self._stops.push(self._detokenizer.flush(), check=self._stop_strings_count())
        matched = self._stops.matched
        if matched is not None:
            self._finish(FinishReason.STOP, matched)
            return
        self._text += self._stops.finish()
        if isinstance(stop_reason, Failure):
            self.failure, stop_reason = stop_reason.code, stop_reason.message
        self._finish(reason, stop_reason)

    def _finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        self.finish_reason, self.stop_reason = reason, stop_reason
        self.metrics.finished_time = time.monotonic()


def _logprobs(params: SamplingParams) -> list[PositionLogprobs] | FlatLogprobs:
    return FlatLogprobs() if params.flat_logprobs else []


def _detokenizer(request: EngineRequest, tokenizer: AnyTokenizer) -> Detokenizer:
    params = request.params
    if not params.detokenize:
        return NullDetokenizer()
    shape = (params.skip_special_tokens, params.spaces_between_special_tokens)
    return tokenizer.detokenizer(request.prompt_token_ids, *shape)
