"""Layers that keep a state in place of keys: whose states go on from where, and how, in every forward (`rows`), and what
is saved of them (`feature`). Their memory is in `runner/caches/states.py`. Imports `core`, `models` and `runner`;
`runner/features/setup.py` imports it."""
