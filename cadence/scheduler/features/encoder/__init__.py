"""Encoder-decoder models on the host: which contents have to be encoded before a step, and how many fit into one."""
