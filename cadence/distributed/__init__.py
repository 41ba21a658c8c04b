"""What ranks have in common: their places in the mesh, the memory they share, and what they compute together.

`mesh` says which slice and which stage a rank has. `shared_memory`, `mapped_area`, `words` and `ring` are memory and
messages in it; `collectives`, `links` and `shared_areas` are what CPU ranks compute in. Ranks with a GPU each
(`gpu_ranks`) reach each other by an `exchange`: `nccl`, `peer_exchange` (memory of GPUs) or `staged` (through the
host). Imports `kernels`, `device` and `process`; executors import it.
"""
