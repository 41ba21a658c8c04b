"""Matrices of few bits, made by a `packer`.

4 and 8 bits with scales: `few_bits*`, chosen by `few_bits_matrix`; `eight_rows` where activations have eight bits, too.
Blocks of GGUF files: `block_*` for types with grids (`grid_decoders`), `span_*` for those without, in planes of words.
Several kinds in one matrix: `joined_matrix`. Imports `linear` and `common`.
"""
