"""The one door to the hardware: `base` is the interface, `cpu` and `cuda` are its twins, `probe` opens one of them.

`staged` writes device tables from the host, `calls` and `host_calls` record calls into C, `torch_private` has what is
used of torch beyond its documentation. Imports core; `kernels` and everything above it may import it.
"""
