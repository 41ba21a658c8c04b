"""Matrices of few bits, made by a `packer`: 4 and 8 bits with scales (`few_bits*`, `eight_rows`), blocks of GGUF files
with grids (`block_*`) and without (`span_*`), several kinds in one (`joined_matrix`). Imports `linear` and `common`.
"""
