"""The KV cache in the device's memory: `storage` allocates it, and a file per family of KV kinds makes the view that a
layer gets (`keys_values`: full, sliding and cross attention).

The executor and tests import `storage`; this folder imports `core`, `device` and `models/interface`.
"""
