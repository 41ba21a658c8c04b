"""Paged attention and the KV cache: decode and short runs (`attention_split`), prompts (`attention_prefill`, and
`attention_long` by a library), caches of eight bits (`byte_rows` in, `attention_bytes` out), rotation and storing
(`heads`). Imports `common`.
"""
