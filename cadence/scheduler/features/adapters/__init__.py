"""Adapters beside the scheduler: which of them lie in the device's slots, and who uses these."""
