"""How checkpoints may be quantised, by name. Flags need no more than this."""

from __future__ import annotations

METHODS = ("compressed-tensors", "gptq", "awq", "fp8", "bitsandbytes")
CHECKPOINT_METHODS = {  # by the names that are known for them, those of kernels elsewhere among them
    **{method: method for method in METHODS},
    "gptq_marlin": "gptq",
    "awq_marlin": "awq",
}
