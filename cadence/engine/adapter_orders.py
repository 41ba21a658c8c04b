"""What users order about adapters, beside requests: checked here, carried out where the adapters are."""

from __future__ import annotations

from dataclasses import dataclass, field

from cadence.core.adapter import AdapterAnswer, AdapterOrder, AdapterVerb
from cadence.core.errors import AdapterError, InvalidRequestError
from cadence.core.lora_request import adapter_of
from cadence.core.shown import shown

LIST_ORDER = AdapterOrder(AdapterVerb.LIST)
_MOST_NUMBERS = 1 << 63


def add_order(lora_request: object, enabled: bool) -> AdapterOrder:
    adapter = adapter_of(lora_request, enabled)
    if adapter is None:
        raise InvalidRequestError("lora_request must be a LoRARequest, not None", "lora_request")
    return AdapterOrder(AdapterVerb.ADD, adapter.number, adapter)


def order_of(verb: AdapterVerb, lora_id: object) -> AdapterOrder:
    if not isinstance(lora_id, int) or isinstance(lora_id, bool) or not 1 <= lora_id < _MOST_NUMBERS:
        raise InvalidRequestError(f"lora_id must be an integer of at least 1, not {shown(str(lora_id))}", "lora_id")
    return AdapterOrder(verb, lora_id)


def checked(order: AdapterOrder, answer: AdapterAnswer) -> AdapterAnswer:
    """Raises what the answer says: an AdapterError for one that cannot be read or used."""
    if not answer.error:
        return answer
    raise AdapterError(answer.error) if order.adapter is not None else InvalidRequestError(answer.error, "lora_id")


@dataclass(slots=True)
class KeptOrders:
    """Orders that were carried out, and that the next engine must carry out again should this one die."""

    _added: dict[int, AdapterOrder] = field(default_factory=dict)  # by number, in the order in which they came
    _pinned: dict[int, AdapterOrder] = field(default_factory=dict)

    def note(self, order: AdapterOrder) -> None:
        """It was carried out."""
        match order.verb:
            case AdapterVerb.ADD:
                self._added[order.number] = order
            case AdapterVerb.PIN:
                self._pinned[order.number] = order
            case AdapterVerb.REMOVE:
                self._added.pop(order.number, None)
                self._pinned.pop(order.number, None)

    def again(self) -> list[AdapterOrder]:
        return [*self._added.values(), *self._pinned.values()]
