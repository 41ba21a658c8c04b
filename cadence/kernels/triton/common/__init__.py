"""Launching kernels, Triton's cache of them, asking for memory ahead of its use. What is used of Triton beyond its
documentation lies in `private`. Imports no other folder of kernels.
"""
