"""What requests bring for an encoder: each content is encoded once, before the first step of the first of its requests.

Where its keys lie is the KV cache's business (`kv/kinds/cross.py`): requests of one content share the blocks, and as
long as these are cached it is not encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cadence.core.contract.encoder_work import EncoderWork
from cadence.core.inputs.encoder_input import ENCODER, EncoderInput
from cadence.core.model.kv_spec import CROSS, KVGroup
from cadence.scheduler.feature import HostFeature
from cadence.scheduler.kv.manager import PrefixHit
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.request_state import RequestState


class EncoderContents(HostFeature):
    """Sends with a plan what is to be encoded, and says of a row how long its encoder's output is."""

    name = ENCODER
    computes = True

    def __init__(self, groups: Sequence[KVGroup], budget: int, slot_of: Callable[[RequestState], int]) -> None:
        """budget: positions of a plan. slot_of: of the adapter of a request that has just begun"""
        self._is_cross = [group.kind == CROSS for group in groups]
        self._budget = budget
        self._slot_of = slot_of

    def admits(self, request: RequestState, hit: PrefixHit, draft: PlanDraft) -> bool:
        """One content fits into every plan, however long it is."""
        if not hit.lacks_source:
            return True
        planned = sum(work.length for work in draft.payloads.get(self.name, ()))
        return not planned or planned + hit.source_len <= self._budget

    def begin(self, request: RequestState, draft: PlanDraft) -> int | None:
        content = request.request.attached(EncoderInput)
        if content is None:
            return None
        if request.blocks.lacks_source:
            draft.payloads.setdefault(self.name, []).append(self._work(request, content))
        return content.length

    def _work(self, request: RequestState, content: EncoderInput) -> EncoderWork:
        tables = zip(self._is_cross, request.blocks.tables, strict=True)
        return EncoderWork(
            token_ids_np=content.token_ids_np,
            features_np=content.features_np,
            length=content.length,
            block_ids=tuple([block.id for block in table] if is_cross else [] for is_cross, table in tables),
            adapter=self._slot_of(request),
        )
