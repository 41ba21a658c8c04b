"""Ranks in processes of this machine, and the executor that drives any ranks.

`processes` is that executor. A `rank_group` starts, watches and ends ranks; `local_ranks` reach the engine through
shared memory. `rank_processes` and `joining` also serve ranks that join over the network. Imports `worker` and
`interface`.
"""
