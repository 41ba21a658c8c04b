"""Adapters on the device: which slot each row uses, and what plans put into slots."""
