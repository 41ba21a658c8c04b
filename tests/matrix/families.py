"""The models that the matrix is run on."""

from __future__ import annotations

FAMILIES = ("llama", "gemma2")  # one KV group; full and sliding groups over one pool
EVERY_FAMILY = (*FAMILIES, "mixtral")  # experts, too: `make matrix-experts`
