"""What tenants have had of the device, and which of them goes first: the one that has had the least for its weight.

A tenant has had the tokens that were computed for its requests, divided by its weight; what the prefix cache saved it
does not count. A tenant that has no requests does not save up: when it comes back, it has had no less than the others
but for one step's tokens, by which its first ones come at once. Nor does one pay for what it took while no other had
requests. Who had requests lately is expected to come back: steps are kept short for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import StepPlan
from cadence.scheduler.request_state import RequestState

_LATELY = 256  # steps for which a tenant without requests is expected to come back
_CLOSE = 0.25  # of a step's tokens: tenants that have had about as much take their turns together


class NoShares:
    """Requests are served in their order, from any tenant."""

    @property
    def shared(self) -> bool:
        """Several tenants have requests, or had lately."""
        return False

    def is_ahead(self, tenant: str) -> bool:
        """Whether it has had clearly more than the one that goes first, of those that have requests or had lately."""
        return False

    def join(self, request: EngineRequest) -> None: ...

    def leave(self, request: EngineRequest) -> None: ...

    def charge(self, plan: StepPlan, requests: Mapping[int, RequestState]) -> None: ...

    def queue_of(self, request: EngineRequest) -> str:
        """Which of the waiting queues it is in."""
        return ""

    def had(self, queue: str) -> float:
        """The queue of the least is served first."""
        return 0.0

    def share(self, tenant: str) -> float:
        """Of all there is, what this one may have while others want it, 0 to 1."""
        return 1.0


class TenantShares(NoShares):
    """Counters of the tenants that have requests, or had some lately."""

    def __init__(self, step_tokens: int) -> None:
        self._credit = step_tokens
        self._had: dict[str, float] = {}  # by tenant: tokens per unit of its weight
        self._weights: dict[str, float] = {}  # of those with requests
        self._requests: Counter[str] = Counter()  # of each tenant that have not ended
        self._left_at: dict[str, int] = {}  # by tenants without requests, those that left first: the step
        self._num_steps = 0
        self._least = 0.0  # what the tenant with the least has had, of those with requests
        self._floor = 0.0  # the most that this has been

    @property
    def shared(self) -> bool:
        return len(self._requests) + len(self._left_at) > 1

    def is_ahead(self, tenant: str) -> bool:
        least = self._floor - self._credit if self._left_at else self._least
        return self._had[tenant] > least + _CLOSE * self._credit

    def join(self, request: EngineRequest) -> None:
        tenant = request.tenant
        if tenant not in self._requests:
            least = self._floor - self._credit / request.weight
            self._had = {name: had for name, had in self._had.items() if had > self._floor or name in self._requests}
            self._had[tenant] = max(self._had.get(tenant, least), least)
            self._left_at.pop(tenant, None)
            self._least = min(self._least, self._had[tenant])
        self._requests[tenant] += 1
        self._weights[tenant] = request.weight

    def leave(self, request: EngineRequest) -> None:
        tenant = request.tenant
        self._requests[tenant] -= 1
        if not self._requests[tenant]:
            del self._requests[tenant], self._weights[tenant]
            self._left_at[tenant] = self._num_steps

    def charge(self, plan: StepPlan, requests: Mapping[int, RequestState]) -> None:
        """A plan that will be carried out. Of a burst, all its forwards; of drafts, as many as there may be."""
        self._num_steps += 1
        while self._left_at and next(iter(self._left_at.values())) < self._num_steps - _LATELY:
            del self._left_at[next(iter(self._left_at))]
        tokens_np = plan.num_tokens_np + (plan.num_samples_np > 0) * ((plan.num_forwards - 1) * plan.width)
        if len(self._requests) == 1:
            row = int(plan.rows_np[0])
            self._add(requests[row].request.tenant, int(tokens_np.sum()))
        else:
            for row, tokens in zip(plan.rows_np.tolist(), tokens_np.tolist(), strict=True):
                self._add(requests[row].request.tenant, tokens)
        if self._requests:
            self._least = min(self._had[tenant] for tenant in self._requests)
            self._floor = max(self._floor, self._least)

    def _add(self, tenant: str, tokens: int) -> None:
        """A row that has ended may still be in a plan."""
        if tenant in self._weights:
            self._had[tenant] += tokens / self._weights[tenant]

    def queue_of(self, request: EngineRequest) -> str:
        return request.tenant

    def had(self, queue: str) -> float:
        return self._had[queue]

    def share(self, tenant: str) -> float:
        return self._weights[tenant] / sum(self._weights.values())
