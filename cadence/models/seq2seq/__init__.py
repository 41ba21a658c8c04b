"""Families of encoder-decoder models, a file each. They import `models` and its layers; `models/registry.py` finds them
by name."""
