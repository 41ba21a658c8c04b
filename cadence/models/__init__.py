"""One file per family on one shared `decoder`, the `encoder` that families of `encoders` share, and the `registry` that
finds a family by its architecture.

`weight_map` maps names in checkpoints to parameters, `stage` and `stage_ends` are a decoder of which this device has
some layers. Imports `kernels/interface` and core; `lora`, `speculate`, `executor/worker` and the folders of loaders and
heads import it.
"""
