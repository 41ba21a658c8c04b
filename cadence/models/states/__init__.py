"""Families whose layers, all or some, keep a state in place of keys, a file each. They import `models` and its layers;
`models/registry.py` finds them by name."""
