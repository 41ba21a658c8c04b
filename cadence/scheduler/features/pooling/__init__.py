"""Requests whose hidden states are wanted, not tokens: what came of them is put together here. Imports `core` and
`scheduler`; `engine/build.py` imports it."""
