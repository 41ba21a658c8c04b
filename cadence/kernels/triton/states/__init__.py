"""Layers that keep a state: short convolutions, scans and delta rules, token by token and in chunks, and what comes
after them. Imports `common` alone."""
