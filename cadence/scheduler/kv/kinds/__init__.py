"""What distinguishes one KV group from another: a kind each. `base` is what all answer, `choose` the table of them,
`block` what their tables consist of.

A kind is arithmetic about one group; it owns no block. It imports `core` alone; `scheduler` and `kv` import it.
"""
