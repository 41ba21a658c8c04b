"""Ranks that come over the network: from nodes that the user starts, or from Ray. Imports `local` and `worker`."""
