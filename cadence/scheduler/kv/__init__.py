"""The blocks of the KV cache: one pool, a table per request and group, cached prefixes. No device memory is here.

`manager` is what the scheduler talks to, `sizing` what a start needs; the rest of the folder is theirs.
"""
