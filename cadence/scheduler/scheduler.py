"""Who computes how many tokens in the next step. Orchestration only: each part has a file of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.contract.engine_state import EngineState, EngineStats
from cadence.core.contract.request import EngineRequest, FinishReason
from cadence.core.contract.step import Mail, StepPlan, StepResult
from cadence.core.contract.update import RequestUpdate, TokenUpdates
from cadence.core.errors import InvalidRequestError
from cadence.core.model.kv_spec import KVLayout
from cadence.scheduler.admission import Admission
from cadence.scheduler.advance import Advance
from cadence.scheduler.budget import ONE_TOKEN, RunLimits, TokenBudget
from cadence.scheduler.burst import BurstPolicy
from cadence.scheduler.decode_times import DecodeTimes
from cadence.scheduler.extension import Extension
from cadence.scheduler.feature import Books, HostFeature, with_own
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.kv.sizing import check_pool
from cadence.scheduler.news import News, news_of
from cadence.scheduler.pace import PacePolicy
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.preempt import Preemption
from cadence.scheduler.queue import WaitingQueue
from cadence.scheduler.request_state import OrderKey, RequestState, Status
from cadence.scheduler.retiring import Retiring
from cadence.scheduler.rows import RowTable
from cadence.scheduler.running import RunningList
from cadence.scheduler.shares import NoShares, TenantShares
from cadence.scheduler.sharing import NO_PRECEDENCE, Precedence, Sharing
from cadence.scheduler.snapshot import block_owners, running_views, waiting_views
from cadence.scheduler.step_in_flight import StepInFlight
from cadence.scheduler.update import Reconciler

NOTHING_PREPARED: Mapping[str, Any] = MappingProxyType({})


class Scheduler:
    """`schedule` may be called again before `update` has had the last plan's result; results come in plan order."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        layout: KVLayout,
        num_blocks: int,
        max_model_len: int,
        features: Sequence[HostFeature] = (),
        runs: RunLimits = ONE_TOKEN,
    ) -> None:
        """features: in the order in which they are asked"""
        budget = TokenBudget.of(config, max_model_len, runs)
        check_pool(layout, num_blocks, budget.in_flight, max_model_len, config.max_encoder_len)
        self._by_priority = config.policy == "priority"
        self._features = {feature.name: feature for feature in features}
        self._joined, self._left = with_own(features, "join"), with_own(features, "leave")
        self._forgetting, self._dropping = with_own(features, "forget"), with_own(features, "dropped")
        self._max_model_len = max_model_len
        self._max_step_tokens = config.max_num_batched_tokens
        self._num_added = 0
        self._last_step = 0
        self._last_cut = 0  # the step that was cut last
        self._requests: dict[str, RequestState] = {}  # all that have not ended
        self._in_flight: dict[int, StepInFlight] = {}  # by step id
        hit_limits = [feature.longest_hit for feature in with_own(features, "longest_hit")]
        self._kv = KVManager(layout, num_blocks, cache.enable_prefix_caching, budget.in_flight, hit_limits)
        self._rows = RowTable(config.max_num_seqs)
        self._shares = TenantShares(config.max_num_batched_tokens) if config.policy == "fair" else NoShares()
        self._waiting = WaitingQueue(self._shares)
        self._running = RunningList()
        self._retiring = Retiring(self._rows, self._kv, features)
        self._preemption = Preemption(self._running, self._waiting, self._retiring, self._kv)
        self._decodes = DecodeTimes()
        self._pace = PacePolicy(config, layout.block_size, self._decodes)
        self._books = books = Books(self._rows, self._kv, budget)
        self._advance = Advance(books, self._pace, self._running, self._preemption, features)
        self._admission = Admission(books, self._waiting, self._running, features)
        self._sharing = Sharing(self._shares, books, self._waiting, self._running, self._preemption, self._retiring)
        self._bursts = BurstPolicy(config, self._decodes)
        self._extension = Extension(books, self._bursts, features)
        self._reconciler = Reconciler(books, features)
        self._computing = [feature.name for feature in features if feature.computes]
        self._mailing, self._timed = with_own(features, "mail"), with_own(features, "observe_time")

    def add(self, request: EngineRequest, prepared: Mapping[str, Any] = NOTHING_PREPARED) -> None:
        """Joins the waiting queue. prepared: for its features, under their names"""
        self.check(request)
        self.join(request, prepared)

    def join(self, request: EngineRequest, prepared: Mapping[str, Any] = NOTHING_PREPARED) -> None:
        """As `add`, of a request that was checked."""
        self._num_added += 1
        tables = self._kv.new_tables(request.cache_salt, request.keys_digest, request.source_len, request.keys_spans)
        self._shares.join(request)
        self._requests[request.request_id] = state = RequestState(
            request, self._key_of(request), tables, self._max_model_len, prepared
        )
        for feature in self._joined:
            feature.join(state)
        self._waiting.push(state)

    def abort(self, request_ids: Iterable[str], reason: FinishReason = FinishReason.ABORT) -> list[RequestUpdate]:
        """Ends requests wherever they are. Ids that are unknown, or have ended, are ignored."""
        updates = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None:
                update = news_of(request, [])
                update.finish_reason = reason
                self._end(request)
                updates.append(update)
        return updates

    def fills_step(self) -> bool:
        """Whether waiting prompts fill the next step, so that no new request can join it. By priority, one can."""
        return not self._by_priority and self._waiting.num_prompt_tokens >= self._max_step_tokens

    def schedule(self) -> StepPlan:
        """The next step. A plan without rows says that there is nothing to do before a step in flight returns:
        it is not carried out, and no result is expected."""
        draft = PlanDraft(self._last_step + 1)
        order, waiting = self._arrange(), self._waiting.num_ready > 0
        room = self._advance.run(draft, waiting, order)
        if not draft.short:
            self._admission.run(draft, room, order.is_brief)
        if order.some_yield and not (draft.begun or len(draft.rows_np)):
            # The one for which they made way could not begin after all.
            self._advance.run(draft, waiting, order.without_yielding())
        draft.close(self._rows.waits_np)
        if not len(draft.rows_np):
            for feature in self._dropping:
                feature.dropped(draft)
            return draft.build(ended=[], num_together=1)
        self._extension.run(draft, waiting=self._waiting.num_ready > 0)
        streams = bool(self._rows.streams_np[draft.sampling_np].any())
        together = 1 if streams else self._bursts.together(len(draft.rows_np), draft.num_forwards)
        plan = draft.build(self._retiring.take_ended(), together)
        self._last_step = plan.step_id
        self._shares.charge(plan, self._rows.requests)
        self._in_flight[plan.step_id] = StepInFlight(
            plan,
            draft.sampling_np,
            draft.following_np,
            draft.lines_np,
            plan.num_forwards,
            awaits_mail=bool(plan.waits),
            certain=tuple(draft.certain),
        )
        return plan

    def _arrange(self) -> Precedence:
        if self._shares.shared:
            return self._sharing.arrange(self._admission)
        self._running.arrange_by_key()
        return NO_PRECEDENCE

    def mail(self, step: StepInFlight) -> tuple[Mail, list[RequestUpdate]]:
        """What rows of a step wait for; all steps before it have returned. -> the mail, and the ends of requests that
        cannot go on: no mail is written for them"""
        mail, ended = Mail(), list[RequestUpdate]()
        for feature in self._mailing:
            mail[feature.name], ends = feature.mail(step, self._books)
            ended += ends
        for update in ended:
            self._end(self._requests[update.request_id])
        return mail, ended

    def in_flight(self, step_id: int) -> StepInFlight:
        """The step whose plan `schedule` made, until all of it has returned."""
        return self._in_flight[step_id]

    def update(self, result: StepResult) -> list[RequestUpdate]:
        """Takes in a part of a step's results, in order -> at most one update per request, and none for those whose
        tokens `take_tokens` returns."""
        step = self._in_flight[result.step_id]
        news = self._reconciler.run(step, result)
        self._fail(news, result)
        for row, update in news.items():
            if update.finish_reason is not None:
                self._end(self._rows.requests[row])
        if step.has_returned:
            self._close(step)
        return list(news.values())

    def take_tokens(self) -> TokenUpdates:
        """Tokens of requests without an update, as `Reconciler.take_tokens` returns them."""
        return self._reconciler.take_tokens()

    def cut(self, step: StepInFlight) -> None:
        """Of the newest step only the forwards asked for so far will run, at least one; the rest is planned anew.
        The step is over if all of these have returned."""
        if step.plan.step_id != self._last_step or step.has_returned or not step.num_queued:
            raise ValueError(f"step {step.plan.step_id} is not the newest, has not begun or has returned: no cut")
        if step.num_queued < step.num_forwards:
            self._extension.cut(step)
            self._last_cut = step.plan.step_id
            if step.has_returned:
                self._close(step)

    def wants_cut(self, step: StepInFlight) -> bool:
        """Whether the rest of the newest step should be planned anew: a request may get a row, or one of its rows has
        ended."""
        return self._retiring.awaits(step.plan.step_id) or self._admission.could_admit()

    def observe_time(self, plan: StepPlan, seconds: float, num_verified: int = 0) -> None:
        """A plan took `seconds` from its launch, or the return of the one before it, to its own return; it verified so
        many lines beyond the first of each run."""
        if plan.step_id == self._last_cut or any(name in plan.payloads for name in self._computing):
            return
        if not np.array_equal(plan.num_tokens_np, plan.num_samples_np):
            self._pace.observe(plan, seconds)
        else:
            self._decodes.observe(len(plan.rows_np), plan.num_forwards, seconds)
            for feature in self._timed:
                feature.observe_time(plan, seconds, num_verified)

    def has_unfinished(self) -> bool:
        """Anything waiting, running, or ended but named by a step in flight."""
        return bool(self._requests or self._retiring)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forgets all cached prefixes; refuses while requests hold blocks, unless they are to give them up and be
        computed again."""
        if reset_running_requests:
            self._preemption.preempt_all()
        if self._running or self._retiring:
            return False
        self._kv.reset_prefix_cache()
        for feature in self._forgetting:
            feature.forget(None)
        return True

    def snapshot(self, with_blocks: bool) -> EngineState:
        """What a person may want to look at. The map of blocks costs as much as there are blocks."""
        running = list(self._running)
        return EngineState(
            running=running_views(running, self._rows),
            waiting=waiting_views(self._waiting.live()),
            block_owners=block_owners(running, self._kv) if with_blocks else [],
            block_size=self._kv.block_size,
            stats=self.stats(),
        )

    def stats(self, preparing: Sequence[EngineRequest] = ()) -> EngineStats:
        """preparing: requests that will be added"""
        of_features = {name: each.stats(self._requests.values(), preparing) for name, each in self._features.items()}
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_usage=self._kv.usage,
            prefix_queries=self._admission.prefix_queries,
            prefix_hits=self._admission.prefix_hits,
            num_preemptions=self._preemption.count,
            **{name: stats for name, stats in of_features.items() if stats is not None},
        )

    def _key_of(self, request: EngineRequest) -> OrderKey:
        if self._by_priority:
            return request.priority, request.arrival_time, self._num_added
        return 0, 0.0, self._num_added

    def check(self, request: EngineRequest) -> None:
        """Raises InvalidRequestError for one that could not be added."""
        if request.request_id in self._requests:
            raise InvalidRequestError(f"request_id {request.request_id!r} is already in use", field="request_id")
        prompt_len = len(request.prompt_token_ids)
        room = self._max_model_len - request.samples
        if not 1 <= prompt_len <= room:
            left = ", one token is to be generated" if request.samples else ""
            raise InvalidRequestError(
                f"prompt has {prompt_len} tokens; between 1 and {room} can be served "
                f"(max_model_len is {self._max_model_len}{left})",
                field="prompt_token_ids",
            )
        for attachment in request.attachments:
            if attachment.feature not in self._features:
                raise InvalidRequestError(attachment.lacking, attachment.feature)
        if request.stop.max_tokens < 1:
            raise InvalidRequestError(f"max_tokens must be at least 1, got {request.stop.max_tokens}", "max_tokens")

    def _fail(self, news: News, result: StepResult) -> None:
        """Requests that failed in a step, after what they got before; what they left in the cache is not trusted."""
        for row, failure in result.errors.items():
            request = self._rows.requests[row]
            if request.status is Status.FINISHED:
                continue
            update = news.setdefault(row, news_of(request, []))
            if update.finish_reason is None:
                update.finish_reason, update.stop_reason = FinishReason.ERROR, failure
                self._kv.forget(request.blocks)
                for feature in self._forgetting:
                    feature.forget(request)

    def _close(self, step: StepInFlight) -> None:
        del self._in_flight[step.plan.step_id]
        self._retiring.step_returned(step.plan.step_id)

    def _end(self, request: RequestState) -> None:
        del self._requests[request.id]
        self._shares.leave(request.request)
        for feature in self._left:
            feature.leave(request)
        was_running = request.status is Status.RUNNING
        request.status = Status.FINISHED
        if was_running:
            self._running.remove(request)
            self._retiring.retire(request)
        else:
            self._waiting.forget(request)
