"""The KV cache in the device's memory: `storage` takes it, a file per family of kinds makes of it what a layer gets.

The executor and tests import `storage`; this folder imports `core`, `device` and `models/interface`.
"""
