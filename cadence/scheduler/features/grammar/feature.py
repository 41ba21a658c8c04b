"""The host half of the feature `grammar`."""

from __future__ import annotations

from cadence.core.contract.step import StepResult
from cadence.core.contract.token_masks import TokenMasks
from cadence.core.contract.update import RequestUpdate
from cadence.core.grammar import GRAMMAR
from cadence.scheduler.feature import Books, Decodes, HostFeature
from cadence.scheduler.features.grammar.forced import force_drafts
from cadence.scheduler.features.grammar.masks import write_masks
from cadence.scheduler.features.grammar.output import ConstrainedOutput, end_of_output, output_of
from cadence.scheduler.news import News
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import RequestState
from cadence.scheduler.step_in_flight import StepInFlight


class GrammarOutputs(HostFeature):
    """Rows with a grammar wait for mail, which says what they may get next; tokens which must come are drafts."""

    name = GRAMMAR

    def join(self, request: RequestState) -> None:
        """What was prepared for it is a `Constraint`, after the tokens that it has."""
        if GRAMMAR in request.kept:
            request.kept[GRAMMAR] = ConstrainedOutput(request.kept[GRAMMAR])
            request.waits = True

    def begin(self, request: RequestState, draft: PlanDraft) -> bool | None:
        if GRAMMAR not in request.kept:
            return None
        output_of(request).drafts = []
        return True

    def widen(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        force_drafts(draft, books, decodes)

    def booked(self, draft: PlanDraft, books: Books, decodes: Decodes) -> None:
        """Drafts stay with these rows: others lost their blocks, or sit the step out."""
        if GRAMMAR not in draft.payloads:
            return
        rows = set(decodes.rows_np.tolist())
        given = [(row, drafts) for row, drafts in draft.payloads.pop(GRAMMAR) if row in rows]
        if given:
            draft.payloads[GRAMMAR] = given
            draft.certain = [row for row, _ in given]

    def mail(self, step: StepInFlight, books: Books) -> tuple[TokenMasks, list[RequestUpdate]]:
        for row, drafts in step.plan.payloads.get(GRAMMAR, ()):
            output_of(books.rows.requests[row]).drafts = drafts
        return write_masks([books.rows.requests[row] for row in step.plan.waits])

    def reconcile(self, step: StepInFlight, result: StepResult, news: News, books: Books) -> None:
        """Rows whose tokens had to be allowed go on from there, or end: nothing may follow."""
        if not step.plan.waits or step.num_returned:
            return
        ahead = result.payloads.get(GRAMMAR, {})
        for row in step.plan.waits:
            if row in news and news[row].finish_reason is None:
                _follow(books, row, news, ahead.get(row, []))


def _follow(books: Books, row: int, news: News, drafts: list[int]) -> None:
    request, update = books.rows.requests[row], news[row]
    output, new = output_of(request), update.new_token_ids
    output.drafts = drafts
    allowed = output.follow(new)
    if output.constraint.finished or len(allowed) < len(new):
        update.new_token_ids, update.complete = allowed, not output.constraint.finished
        update.finish_reason, update.stop_reason = end_of_output(request)
        del request.tokens[len(request.tokens) - len(new) + len(allowed) :]
        books.rows.stop(row)
