"""What tenants have had of the device, and which of them goes first: the one that has had the least for its weight.

A tenant has had the tokens that were computed for its requests, divided by its weight; what the prefix cache saved it
does not count. A tenant that has no requests does not save up: when it comes back, it has had no less than the others
but for one step's tokens, by which its first ones come at once. Nor does one pay for what it took while no other had
requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import StepPlan
from cadence.scheduler.request_state import RequestState


class NoShares:
    """Requests are served in their order, from any tenant."""

    @property
    def contended(self) -> bool:
        """Several tenants have requests."""
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
        self._floor = 0.0  # what the tenant with the least has had, of those with requests; never falls

    @property
    def contended(self) -> bool:
        return len(self._requests) > 1

    def join(self, request: EngineRequest) -> None:
        tenant = request.tenant
        if tenant not in self._requests:
            least = self._floor - self._credit / request.weight
            self._had = {name: had for name, had in self._had.items() if had > self._floor or name in self._requests}
            self._had[tenant] = max(self._had.get(tenant, least), least)
        self._requests[tenant] += 1
        self._weights[tenant] = request.weight

    def leave(self, request: EngineRequest) -> None:
        tenant = request.tenant
        self._requests[tenant] -= 1
        if not self._requests[tenant]:
            del self._requests[tenant], self._weights[tenant]

    def charge(self, plan: StepPlan, requests: Mapping[int, RequestState]) -> None:
        """A plan that will be carried out. Of a burst, all its forwards; of drafts, as many as there may be."""
        tokens_np = plan.num_tokens_np + (plan.num_samples_np > 0) * ((plan.num_forwards - 1) * plan.width)
        if not self.contended:
            row = int(plan.rows_np[0])
            self._add(requests[row].request.tenant, int(tokens_np.sum()))
        else:
            for row, tokens in zip(plan.rows_np.tolist(), tokens_np.tolist(), strict=True):
                self._add(requests[row].request.tenant, tokens)
        if self._requests:
            self._floor = max(self._floor, min(self._had[tenant] for tenant in self._requests))

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
