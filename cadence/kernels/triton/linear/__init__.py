"""Products with tensors of a model's own type (`gemv`, `skinny`, `few_rows`, `matmul`), adapters on top (`lora`), and
norms and gates between them (`elementwise`). Imports `common` and `attention`.
"""
