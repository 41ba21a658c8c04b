"""Matrices of quantised checkpoints: the tensors each is stored in, its values, and its blocks for kernels."""
