"""Ranks in processes of this machine, and the executor that drives any ranks. Imports `worker` and `interface`."""
