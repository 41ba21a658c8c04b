"""The ops in C, compiled on first use: of models (`ops`), rows (`rows`), drafts from earlier texts (`suffix`),
positions with axes (`rope`), layers that keep a state (`states`), experts, adapters, and what ranks do together
(`collectives`, `links`).

Folders without a Python file hold C alone: `attention` (paged attention, rows of the KV cache), `maps` (norms,
activations, rotary positions, noise, token masks, rows), `states` (convolutions, scans, delta rules), `ranks` (sums and
gathers over shared memory).
Imports `interface`, `reference` and `device`.
"""
