"""Ranks that come over the network: from nodes that the user starts (`nodes`), or from Ray (`ray_ranks`).

A `remote_rank` joins at the engine's `rank_listener`, and computes with the others in its `rank_areas`. Imports
`local`, `worker` and `interface`.
"""
