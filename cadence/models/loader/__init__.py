"""Weights: files to parameters. `load_model` is the door.

Sources are safetensors (`safetensors_weights`, `quantized_weights`), GGUF, files that torch saved, and `dummy` weights.
`slots` are what they fill, `packing` packs matrices on the way, `sliced_weights` is what one rank reads,
`sharded_state` has files cut for ranks. Imports `models`, its folders, config and `gguf`; `executor/worker`,
`speculate`, `lora`, `models/quantize` and the shell import it.
"""

from cadence.models.loader.load import load_model

__all__ = ["load_model"]
