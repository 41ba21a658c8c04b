"""What the runner knows of a model (`model`), and of a model that drafts for another (`model_proposer`).

`build` is what modules are built with, `stage` which layers a device has, `wanted` and `aux_hidden` whose hidden states
are returned, `lora_batch` which adapter each token uses. Imports `kernels/interface` and core; `runner`, `lora`,
`speculate` and all models import it.
"""
