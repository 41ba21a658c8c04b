"""Adapters: read from PEFT directories, fitted to a model, and held in slots beside its weights.

Files: `adapter`, `config`, `names`, `patterns`, under `limits`. Fitting: `fit`, `targets`, `magnitude`, and `slices`
for one rank. At work: `layers` around weights, `model` with slots, `store` in host memory. Imports models, kernels and
device; `runner/features` and `executor/worker` import it.
"""
