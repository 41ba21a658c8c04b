"""`LoRARequest`, where scripts look for it."""

from cadence.core.lora_request import LoRARequest

__all__ = ["LoRARequest"]
