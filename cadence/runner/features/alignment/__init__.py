"""Where tokens look in an encoder's output: `rows` keeps the queries of rows that ask, `weights` makes one matrix of
them. Imports `core`, `kernels`, `models` and `runner`; `runner/features/setup.py` imports it."""
