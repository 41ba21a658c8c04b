"""Layers that keep a state in place of keys: where the states of rows stand and what a forward makes of them (`rows`),
and which of them are saved (`feature`). Their memory is in `runner/caches/states.py`. Imports `core`, `models` and
`runner`; `runner/features/setup.py` imports it."""
