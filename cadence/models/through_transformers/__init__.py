"""Families that have no file here: transformers' own modelling code, with our attention, KV cache and matrices.

`outline` makes transformers' model in shapes alone, `trial` runs it once so and sees what its attention layers are,
`registered` are the functions that it calls in place of its own. `linear`, `embedding`, `norm` and `experts` stand in
the places of its modules, and find the context of the forward that runs in `current`. `names` maps what a checkpoint
calls its tensors. `model` puts it together. Nothing but these files imports transformers; `registry` imports `model`.
"""
