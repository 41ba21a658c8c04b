"""Drafts on the device: how many each row may have, those that are looked up, and those that a model makes."""
