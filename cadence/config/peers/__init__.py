"""Flags and keys of vLLM: which work here, which have no effect, which are refused and why. Imports core."""
