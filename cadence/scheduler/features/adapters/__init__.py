"""Adapters on the host: which of them lie in the device's slots, and which requests use them."""
