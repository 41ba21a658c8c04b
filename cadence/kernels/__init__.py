"""Implementations of the ops; `select` chooses one for a device. Imports `device`; the executor imports it.

`interface` has the signatures, which is all that models and the runner import. `reference` is plain torch, `cpu` C,
`triton` the GPU.
"""
