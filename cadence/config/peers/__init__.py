"""Flags and keys of vLLM: which work here, which have no effect, which are refused and why, a line each. Imports core;
`config` and the shell import it."""
