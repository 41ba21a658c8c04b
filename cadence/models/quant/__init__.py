"""Matrices of quantised checkpoints: the tensors that each format stores, its values, and its blocks for kernels.

`packed`, `gptq`, `awq`, `plain`, `fp4` and `bitsandbytes` are the formats, `read` chooses among them, `blocks` is what
kernels multiply. Imports core, `config/files`, `gguf` and `kernels/interface`; `loader` and `quantize` import it.
"""
