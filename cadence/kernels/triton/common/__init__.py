"""Launching kernels, Triton's cache of them, prefetching memory. What is used of Triton beyond its documentation lies
in `private`. Imports no other folder of kernels."""
