"""Adapters on the device: the slot that each row uses, and what plans put into slots. Imports `lora`."""
