"""The signatures of the ops. `reference`, `triton` and `cpu` each implement them.

`ops` is for models, `row_ops` for rows from one forward to the next, `expert_ops`, `lora_ops`, `rope_ops` and
`suffix_ops` for what their names say. `attention_batch` says who attends to what, `matrix` is a weight that only its
own kernels read, `collectives` and `links` are what ranks and stages do together. Imports core and `device`; the whole
device half may import it.
"""
