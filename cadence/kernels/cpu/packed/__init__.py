"""Weights packed once at load, and the matrix product on them.

A packed weight holds its rows in groups of sixteen, side by side, in the precision it came in: 4- to 8-bit GGUF blocks
keep their quants and scales exactly, without a dequantised copy. x is rounded to int8 per row and run of 32 where the
weight is quantised, and taken as it is where it is not. A row of y has the same bits alone and among others, whatever
the number of threads, and (all kinds but bf16 times bf16 or HALF) whatever the instruction set.
"""
