"""Layers that keep a state in place of keys: which prefixes of prompts have a snapshot of it (`snapshots`), where
prompts are cut so that one can be taken, and who goes on from which (`feature`); how many
states are in use where none is kept (`held`). Imports `scheduler` and `core`."""
