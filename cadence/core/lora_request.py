"""`LoRARequest`: how users name the adapter of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from cadence.core.adapter import AdapterSpec
from cadence.core.errors import InvalidRequestError
from cadence.core.shown import shown

_MOST_CHARACTERS = 4096  # of a name or a path
_MOST_NUMBERS = 1 << 63
_REFUSED = {
    "tensorizer_config_dict": "adapters are read from PEFT directories",
    "load_inplace": "an adapter is read once and kept by its path; give a changed one a path of its own",
    "is_3d_lora_weight": "there are no models with experts yet",
}


@dataclass(slots=True)
class LoRARequest:
    """An adapter in PEFT's format. `lora_path` is its directory. Requests tell adapters apart by their content; the
    number names one to `pin_lora` and `remove_lora`."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    tensorizer_config_dict: dict[str, Any] | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path


def adapter_of(request: object, enabled: bool) -> AdapterSpec | None:
    """What `lora_request` asks for; None = no adapter. Raises one InvalidRequestError."""
    if request is None:
        return None
    if not isinstance(request, LoRARequest):
        raise InvalidRequestError(
            f"lora_request must be a LoRARequest, not {type(request).__name__}", field="lora_request"
        )
    if not enabled:
        raise InvalidRequestError(
            "lora_request needs an engine with LoRA adapters: start it with enable_lora", field="lora_request"
        )
    for name in ("lora_name", "lora_path"):
        _check_text(f"lora_request.{name}", getattr(request, name))
    number = request.lora_int_id
    if not _is_number(number):
        raise InvalidRequestError(
            "lora_request.lora_int_id must be an integer of at least 1, of 63 bits", "lora_request"
        )
    for name, why in _REFUSED.items():
        if getattr(request, name):
            raise InvalidRequestError(f"lora_request.{name} cannot be used: {why}", field="lora_request")
    return AdapterSpec(request.lora_name, request.lora_path, number=number)


def required_adapter(request: object, enabled: bool) -> AdapterSpec:
    """As `adapter_of`, where there must be one."""
    adapter = adapter_of(request, enabled)
    if adapter is None:
        raise InvalidRequestError("lora_request must be a LoRARequest, not None", "lora_request")
    return adapter


def checked_number(lora_id: object) -> int:
    if not _is_number(lora_id):
        raise InvalidRequestError(f"lora_id must be an integer of at least 1, not {shown(str(lora_id))}", "lora_id")
    return lora_id


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < _MOST_NUMBERS


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS or "\0" in value:
        raise InvalidRequestError(
            f"{field} must be a text of 1 to {_MOST_CHARACTERS} characters, not {shown(str(value))}", "lora_request"
        )
